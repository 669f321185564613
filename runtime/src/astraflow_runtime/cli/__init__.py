"""The command ``astraflow``: one module per command, imported when it is called."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from astraflow_core.errors import AstraFlowError
from astraflow_runtime.cli import commands
from astraflow_runtime.cli.helping import READ_ON

if TYPE_CHECKING:
    from astraflow_core.installed.discovery import Plugin

TRACEBACK = "ASTRAFLOW_TRACEBACK"
"""Environment variable: ``1`` shows the traceback of every error."""
INTERRUPTED = 130
_EPILOG = (
    "`astraflow COMMAND --help` has examples. Usage errors exit with 2, failed runs with 1. "
    f"{TRACEBACK}=1 shows tracebacks. {READ_ON}commands.md"
)


def parser(plugins: Iterable[Plugin]) -> argparse.ArgumentParser:
    """The whole command line with the commands of these plugins and their arguments."""
    return commands.overview(commands.all_of(plugins), _EPILOG, whole=True)


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments of a command line, with ``command``, the function that takes them. A run named
    without ``--run`` is an error that shows the option.
    """
    if not argv or argv[0].startswith("-"):  # --help, --version and usage errors exit here
        from astraflow_core.catalog import Catalog

        top = commands.overview(commands.all_of(Catalog.discover().plugins), _EPILOG)
        top.parse_args(argv)
        top.error("expected a command first")
    command, words = commands.find(argv)
    own = commands.parser_of(command)
    arguments, rest = own.parse_known_args(words)
    if rest:
        loose = "run" in arguments and not rest[0].startswith("-")
        hint = f"; select a run with --run {rest[0]}" if loose else ""
        own.error(f"unrecognized arguments: {' '.join(rest)}{hint}")
    if "command" not in arguments:
        raise command.without_function()
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0, 1 for a failed run, 2 for an error of the user, 130
    after Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(
            stream, io.TextIOWrapper
        ):  # a character that a terminal cannot show must not end a run
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            arguments = parsed(sys.argv[1:] if argv is None else argv)
        except SystemExit as stop:  # argparse has printed its message
            return stop.code if isinstance(stop.code, int) else 2
        if _names_modules(arguments) and os.getcwd() not in sys.path:
            # A run's own modules ("module:attr") are in the working directory, where `python -m`
            # finds them for the processes of the run; last on the path, they shadow nothing
            # installed.
            sys.path.append(os.getcwd())
        code: int = arguments.command(arguments)
        sys.stdout.flush()
        return code
    except AstraFlowError as error:
        if os.environ.get(TRACEBACK) == "1":
            raise
        sys.stdout.flush()
        from astraflow_runtime.cli.output import print_line

        print_line(f"astraflow: {error}", sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _names_modules(arguments: argparse.Namespace) -> bool:
    """Whether a command may be about ``module:attr``: in a run's file, or by name."""
    return "file" in arguments or ":" in (getattr(arguments, "schema", None) or "")
