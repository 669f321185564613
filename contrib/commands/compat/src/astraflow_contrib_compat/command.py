"""``astraflow compat``: adapters for services with the protocol of the public AstraFlow."""

from __future__ import annotations

import argparse
from pathlib import Path

from astraflow_runtime.cli.helping import teach
from astraflow_runtime.cli.run import add_overrides
from astraflow_runtime.cli.running.secrets import DATAFLOW, TOKEN

_PAGE = "coming-from-astraflow.md"


def add_raas(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``compat raas``."""
    parser.description = (
        "An adapter between the dataflow of a run and rollout services that were written for the public AstraFlow: it leases "
        "tasks for them, brings them the weights and pushes what they return. They register at the address that the "
        "second file names. It ends with the run."
    )
    _add_common(parser)
    _add_dataflow(parser)
    parser.set_defaults(command=run_raas)
    teach(
        parser,
        _PAGE,
        "compat raas run.toml compat.toml --directory runs/mine --dataflow http://127.0.0.1:19100",
    )


def add_dataflow(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``compat dataflow``."""
    parser.description = (
        "Acts as a rollout service for the dataflow of a public AstraFlow, and as a dataflow for our RaaS, which run the "
        "workflow of the first file: submitted samples become their tasks, and versions of the public trainer their weights. It ends "
        "when the public dataflow shuts it down."
    )
    _add_common(parser)
    parser.set_defaults(command=run_dataflow)
    teach(parser, _PAGE, "compat dataflow run.toml compat.toml --directory runs/mine")


def add_trainer(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``compat trainer``."""
    parser.description = (
        "An adapter between the dataflow of a run and trainers that were written for the public AstraFlow: they get its batches, and "
        "their versions are published by the run's transports. It ends with the run."
    )
    _add_common(parser)
    _add_dataflow(parser)
    parser.set_defaults(command=run_trainer)
    teach(
        parser,
        _PAGE,
        "compat trainer run.toml compat.toml --directory runs/mine --dataflow http://127.0.0.1:19100",
    )


def run_raas(arguments: argparse.Namespace) -> int:
    """Serve until the run ends, or Ctrl-C."""
    from astraflow_contrib_compat.serving import serve

    return serve(arguments)


def run_dataflow(arguments: argparse.Namespace) -> int:
    """Serve until the public dataflow shuts this down, or Ctrl-C."""
    from astraflow_contrib_compat.ours.serving import serve

    return serve(arguments)


def run_trainer(arguments: argparse.Namespace) -> int:
    """Serve until the run ends, or Ctrl-C."""
    from astraflow_contrib_compat.trainer.serving import serve

    return serve(arguments)


def _add_dataflow(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dataflow", metavar="URL", help=f"the dataflow (default: environment {DATAFLOW})"
    )


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="TOML file of a run")
    parser.add_argument(
        "compat", metavar="COMPAT", type=Path, help="TOML file with the keys of this command"
    )
    parser.add_argument(
        "--directory", type=Path, required=True, help="run directory, shared or of this host"
    )
    parser.add_argument(
        "--token-file", type=Path, help=f"file with the run's token (default: environment {TOKEN})"
    )
    add_overrides(parser)
