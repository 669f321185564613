"""``astraflow completion SHELL``"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping

import shtab

from astraflow_core.catalog import Catalog
from astraflow_core.errors import PluginError
from astraflow_runtime.cli.commands import PROGRAM, all_of
from astraflow_runtime.cli.helping import teach
from astraflow_runtime.cli.provided import ProvidedCommand

_RUNS = {
    "bash": "_astraflow_runs",
    "zsh": "{_files -W runs -/; _files -/}",
    "tcsh": "d",
    "fish": "(__fish_complete_directories)",
}
_PREAMBLE = {
    "bash": """
_astraflow_runs() {
  if [ -d runs ]; then (cd runs && compgen -d -- "$1"); fi
  compgen -d -- "$1"
}
"""
}
_COMPLETED_BY = {
    "FILE": shtab.FILE,
    "DIR": shtab.DIRECTORY,
    "FOLDER": shtab.DIRECTORY,
    "RUN": _RUNS,
}
"""Name of an argument in the help → how shells complete it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``completion``."""
    parser.add_argument(
        "shell", choices=shtab.SUPPORTED_SHELLS, help="the shell that reads the script"
    )
    parser.set_defaults(command=run)
    teach(parser, "commands.md", "completion bash", "completion zsh")


def run(arguments: argparse.Namespace) -> int:
    """Print the script."""
    commands = all_of(Catalog.discover().plugins)
    shell: str = arguments.shell
    print(shtab.complete(command_line(commands), shell, preamble=_PREAMBLE.get(shell, "")))
    return 0


def command_line(commands: Mapping[str, ProvidedCommand]) -> argparse.ArgumentParser:
    """A parser of ``commands``, those of two words nested, for shtab. It leaves out commands whose plugin fails, and
    says so on standard error."""
    top = argparse.ArgumentParser(prog=PROGRAM)
    top.add_argument("--version", action="store_true")
    inner = top.add_subparsers()
    parents = {name.partition(" ")[0] for name in commands if " " in name}
    for name, entry in commands.items():
        if " " not in name and name not in parents:
            _declare(entry, inner.add_parser(name, help=entry.command.summary))
    for parent in sorted(parents):
        parts = inner.add_parser(parent, help=f"{parent} …").add_subparsers()
        for name, entry in commands.items():
            first, _, second = name.partition(" ")
            if first == parent and second:
                _declare(entry, parts.add_parser(second, help=entry.command.summary))
    return top


def _declare(entry: ProvidedCommand, parser: argparse.ArgumentParser) -> None:
    try:
        entry.declare(parser)
    except PluginError as error:
        print(f"{PROGRAM}: left out: {error}", file=sys.stderr)
    _complete(parser._actions)


def _complete(actions: Iterable[argparse.Action]) -> None:
    """Set how a shell completes each argument, where its name in the help shows it."""
    for action in actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                _complete(inner._actions)
        elif action.choices is None and action.nargs != 0:
            name = str(action.metavar or action.dest).upper()
            if how := _COMPLETED_BY.get(name):
                action.complete = how  # type: ignore[attr-defined]
