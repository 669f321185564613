"""``astraflow run FILE``: plan, start, watch and summarise a run; ``--resume DIRECTORY`` goes on with one."""

from __future__ import annotations

import argparse

from astraflow_core.errors import UserError


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser("run", help="start every process of a run and watch it")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("file", metavar="FILE", nargs="?", help="the run's TOML file")
    which.add_argument(
        "--resume",
        metavar="DIRECTORY",
        help="go on with the run of this directory, which ended before it was finished",
    )
    add_overrides(parser)
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.add_argument("--no-live", action="store_true", help="plain lines even on a terminal")
    parser.set_defaults(command=run)


def add_overrides(parser: argparse.ArgumentParser) -> None:
    """``--set``, the same for every command that reads a run's file."""
    parser.add_argument(
        "--set",
        dest="overrides",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="override a key, such as policies.solver.trainer.lr=3e-6; may be repeated",
    )


def run(arguments: argparse.Namespace) -> int:
    """Hand over to the launcher."""
    from astraflow_core.launch.run import run_file

    if arguments.resume is not None and arguments.overrides:
        raise UserError("--set: a run goes on with the configuration that it began with")
    return run_file(
        arguments.file if arguments.resume is None else arguments.resume,
        overrides=arguments.overrides,
        live=False if arguments.no_live else None,
        json_output=arguments.json,
        resumed=arguments.resume is not None,
    )
