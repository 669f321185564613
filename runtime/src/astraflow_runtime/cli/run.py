"""``astraflow run FILE``: plan, start, watch and summarise a run; ``--resume`` continues one."""

from __future__ import annotations

import argparse

from astraflow_core.errors import UserError
from astraflow_runtime.cli.helping import teach
from astraflow_runtime.cli.run_directory import find_run
from astraflow_wire.host.process import freeze_gc_after_startup


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("file", metavar="FILE", nargs="?", help="the run's TOML file")
    which.add_argument(
        "--resume",
        metavar="RUN",
        nargs="?",
        const="",
        help="resume a run that ended early; default: the newest in runs/",
    )
    add_overrides(parser)
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.add_argument("--no-live", action="store_true", help="plain lines even on a terminal")
    parser.set_defaults(command=run)
    teach(
        parser,
        "your-run.md",
        "run examples/quickstart.toml --set run.steps=20",
        "run --resume",
        "run --resume quickstart-20260102-030405",
    )


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
    """Run the launcher."""
    with freeze_gc_after_startup():
        from astraflow_runtime.launch.run import run_file

    if arguments.resume is not None and arguments.overrides:
        raise UserError("--set: a resumed run keeps its original configuration")
    resumed = arguments.resume is not None
    return run_file(
        find_run(arguments.resume or None, named_by="--resume") if resumed else arguments.file,
        overrides=arguments.overrides,
        live=False if arguments.no_live else None,
        json_output=arguments.json,
        resumed=resumed,
    )
