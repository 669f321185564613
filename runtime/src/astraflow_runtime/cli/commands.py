"""Finds the command of a command line, and builds the parsers of the commands of the runtime and of
plugins.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from astraflow_core import __version__
from astraflow_core.installed.distributions import index
from astraflow_core.installed.entry_points import RUNTIME
from astraflow_runtime.cli.helping import group_commands
from astraflow_runtime.cli.provided import ProvidedCommand, provided_by, select_command
from astraflow_runtime.manifest import astraflow_commands

if TYPE_CHECKING:
    from astraflow_core.installed.discovery import Plugin

PROGRAM = "astraflow"
_WORD = re.compile(r"[a-z][a-z0-9-]*")


def of_the_runtime() -> dict[str, ProvidedCommand]:
    """The commands of the runtime itself, found without looking at installed plugins: a plugin that
    a run disables is not imported for them.
    """
    return {
        command.name: ProvidedCommand(command, RUNTIME, "astraflow-runtime", __version__)
        for command in astraflow_commands()
    }


def all_of(plugins: Iterable[Plugin]) -> dict[str, ProvidedCommand]:
    """The commands of the runtime and of plugins by name, group by group. A command of a plugin has
    its qualified name only where the name alone is ambiguous.
    """
    named = provided_by(plugins)
    of_plugins = {
        name: entry
        for name, entry in named.items()
        if entry.plugin != RUNTIME
        and (name == entry.command.name or named.get(entry.command.name) is not entry)
    }
    found = of_the_runtime() | of_plugins
    groups = list(dict.fromkeys(entry.command.group for entry in found.values()))
    return dict(sorted(found.items(), key=lambda item: groups.index(item[1].command.group)))


def find(words: Sequence[str]) -> tuple[ProvidedCommand, list[str]]:
    """The command that a command line starts with, and its arguments. `raas check` is a command, and `raas FILE`
    another; a plugin's `config import` is listed among the subcommands of `config`. Raises :class:`PluginError` if there is none."""
    own = of_the_runtime()
    first, both = words[0], " ".join(words[:2])
    second = both.partition(" ")[2]
    if both in own:
        return own[both], list(words[2:])
    if first in own and (not _WORD.fullmatch(second) or second in _parts(own[first])):
        return own[first], list(words[1:])
    from astraflow_core.catalog import Catalog

    plugins = Catalog.discover().plugins
    known = {entry.command.name for entry in provided_by(plugins).values()}
    if {both, both.partition("/")[2]} & (known | index().commands.keys()) and " " in both:
        return select_command(plugins, both), list(words[2:])
    if first in own:
        return own[first], list(words[1:])
    if words[1:] in ([], ["-h"], ["--help"]) and first not in known:
        _list_parts(first, all_of(plugins), words[1:])
    return select_command(plugins, first), list(words[1:])


def _list_parts(first: str, commands: Mapping[str, ProvidedCommand], words: Sequence[str]) -> None:
    """Print the help of ``first``, and exit, if all that begins with it are commands of two words, as `pool start`."""
    parts = {
        name.partition(" ")[2]: entry.command.summary
        for name, entry in commands.items()
        if name.startswith(f"{first} ")
    }
    if parts:
        parser = argparse.ArgumentParser(prog=f"{PROGRAM} {first}")
        inner = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
        for name, summary in parts.items():
            inner.add_parser(name, help=summary)
        parser.parse_args(words)


def _parts(command: ProvidedCommand) -> set[str]:
    """The names of its subcommands."""
    parser = argparse.ArgumentParser()
    command.declare(parser)
    inner = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return {name for action in inner for name in action.choices}


def parser_of(command: ProvidedCommand) -> argparse.ArgumentParser:
    """The parser of one command, with its arguments."""
    parser = argparse.ArgumentParser(prog=f"{PROGRAM} {command.command.name}")
    command.declare(parser)
    return parser


def overview(
    commands: Mapping[str, ProvidedCommand], epilog: str, whole: bool = False
) -> argparse.ArgumentParser:
    """The parser of ``astraflow --help``, which lists commands in their groups. It imports their modules, which declare their
    arguments, only if ``whole``."""
    top = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Asynchronous reinforcement learning for language-model agents.",
        epilog=epilog,
    )
    top.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    inner = top.add_subparsers(metavar="COMMAND", required=True)
    for name, entry in commands.items():
        parser = inner.add_parser(name, help=entry.command.summary)
        if whole:
            entry.declare(parser)
    group_commands(top, inner, _grouped(commands))
    return top


def _grouped(commands: Mapping[str, ProvidedCommand]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name, entry in commands.items():
        groups.setdefault(entry.command.group, []).append(name)
    return groups
