"""The command ``astraflow``: one module per command, each importing what it needs when it runs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from astraflow_core import __version__
from astraflow_core.cli import (
    balance,
    config,
    doctor,
    environments,
    explain,
    plugins,
    policy,
    pool,
    raas_check,
    report,
    roles,
    run,
    simulate,
    status,
    weights,
)
from astraflow_core.errors import AstraFlowError

TRACEBACK = "ASTRAFLOW_TRACEBACK"
"""Environment variable: ``1`` shows the traceback of every error."""
INTERRUPTED = 130


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(
        prog="astraflow",
        description="Asynchronous reinforcement learning for language-model agents.",
        epilog=f"Errors of use exit with 2, failed runs with 1. {TRACEBACK}=1 shows tracebacks.",
    )
    top.add_argument("--version", action="version", version=f"astraflow-core {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in (
        run,
        plugins,
        doctor,
        config,
        environments,
        status,
        balance,
        simulate,
        explain,
        policy,
        report,
        weights,
        roles,
        pool,
        raas_check,
    ):
        module.add(commands)
    return top


def _in_words(top: argparse.ArgumentParser, argv: Sequence[str]) -> list[str]:
    """The arguments with a command of two words, such as `raas check`, as one: `raas FILE` is a command too. Ends
    with the nearest command if the first is none."""
    (commands,) = (each for each in top._actions if isinstance(each, argparse._SubParsersAction))
    both = " ".join(argv[:2])
    if both in commands.choices:
        return [both, *argv[2:]]
    if argv and not argv[0].startswith("-") and argv[0] not in commands.choices:
        from astraflow_core.suggestions import did_you_mean

        hint = did_you_mean(argv[0], commands.choices) or ";"
        top.error(f"no command {argv[0]!r}{hint} `astraflow --help` lists them")
    return list(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0, 1 for a failed run, 2 for an error of the user, 130
    after Ctrl-C."""
    try:
        top = parser()
        arguments = top.parse_args(_in_words(top, sys.argv[1:] if argv is None else argv))
    except SystemExit as stop:  # argparse has said what it had to say
        return stop.code if isinstance(stop.code, int) else 2
    if _names_modules(arguments) and os.getcwd() not in sys.path:
        # A run's own modules ("module:attr") lie in the working directory. The processes of the run find
        # them there, being started with `python -m`; last on the path, they hide nothing installed.
        sys.path.append(os.getcwd())
    try:
        code: int = arguments.command(arguments)
        sys.stdout.flush()
        return code
    except AstraFlowError as error:
        if os.environ.get(TRACEBACK) == "1":
            raise
        sys.stdout.flush()
        print(f"astraflow: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _names_modules(arguments: argparse.Namespace) -> bool:
    """Whether a command may be about ``module:attr``: in a run's file, or by name."""
    return "file" in arguments or ":" in (getattr(arguments, "schema", None) or "")
