"""``astraflow compat raas``: rollout services that speak the protocol of the public AstraFlow work for a run."""

from __future__ import annotations

import argparse
from pathlib import Path

from astraflow_runtime.cli.helping import teach
from astraflow_runtime.cli.run import add_overrides
from astraflow_runtime.cli.running.secrets import DATAFLOW, TOKEN


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.description = (
        "Stands between the dataflow of a run and rollout services that were written for the public AstraFlow: it leases "
        "tasks for them, brings them the weights and pushes what they return. They register at the address that the "
        "second file names. It ends with the run."
    )
    parser.add_argument(
        "file", metavar="FILE", help="the run's TOML file, the same for every process"
    )
    parser.add_argument(
        "compat", metavar="COMPAT", type=Path, help="TOML file with the keys of this door"
    )
    parser.add_argument(
        "--directory", type=Path, required=True, help="run directory, shared or of this host"
    )
    parser.add_argument(
        "--token-file", type=Path, help=f"file with the run's token (default: environment {TOKEN})"
    )
    parser.add_argument(
        "--dataflow", metavar="URL", help=f"the dataflow (default: environment {DATAFLOW})"
    )
    add_overrides(parser)
    parser.set_defaults(command=run)
    teach(
        parser,
        "coming-from-astraflow.md",
        "compat raas run.toml compat.toml --directory runs/mine --dataflow http://127.0.0.1:19100",
    )


def run(arguments: argparse.Namespace) -> int:
    """Serve until the run ends, or Ctrl-C."""
    from astraflow_contrib_compat.serving import serve

    return serve(arguments)
