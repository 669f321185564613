"""``astraflow run FILE``: plan, start, watch and summarise a run."""

from __future__ import annotations

import argparse


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser("run", help="start every process of a run and watch it")
    parser.add_argument("file", metavar="FILE", help="the run's TOML file")
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

    return run_file(
        arguments.file,
        overrides=arguments.overrides,
        live=False if arguments.no_live else None,
        json_output=arguments.json,
    )
