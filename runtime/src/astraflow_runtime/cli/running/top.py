"""``astraflow top``: the live view of a running run, in another terminal."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from pydantic import ValidationError

from astraflow_core.config.models import RunConfig
from astraflow_core.config.rendering import render
from astraflow_core.errors import DeadlineExceeded, UserError
from astraflow_core.protocols.launcher import ProcessState
from astraflow_runtime.cli.helping import teach
from astraflow_runtime.cli.run_directory import add_run, find_run, read_config
from astraflow_runtime.cli.running.asking import asking
from astraflow_runtime.launch.view.views import View, make_view
from astraflow_wire.status import Status, read_status

_DEADLINE_S = 10.0
_SHORTEST_S, _LONGEST_S = 0.1, 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``top``."""
    add_run(parser)
    parser.add_argument(
        "--every",
        metavar="S",
        type=_seconds,
        default=1.0,
        help="seconds between two refreshes; default: 1",
    )
    parser.set_defaults(command=run)
    teach(parser, "processes.md", "top", "top --run quickstart-20260102-030405 --every 5")


def run(arguments: argparse.Namespace) -> int:
    """Show the run until it ends, or until Ctrl-C, which ends the view and not the run."""
    folder = find_run(arguments.run, live=True)
    view = make_view(_config(folder), None, directory=folder)
    try:
        return _follow(folder, view, arguments.every)
    finally:
        view.close()


def _follow(folder: Path, view: View, every_s: float) -> int:
    seen = False
    with asking(str(folder)) as client:
        while True:
            try:
                status = read_status(client.get_json("/v1/status", deadline_s=_DEADLINE_S))
            except DeadlineExceeded:
                # The launcher writes the summary last, when the dataflow has exited.
                if seen and (folder / "summary.json").exists():
                    break
                raise
            view.show(status, _processes(status))
            seen = True
            if status.ended:
                break
            time.sleep(every_s)
    view.say(f"the run has ended; `astraflow report --run {folder}` shows its results")
    return 0


def _processes(status: Status) -> list[ProcessState]:
    """The processes of the RaaS; the dataflow does not know those of the trainers."""
    return [
        ProcessState(raas.name, raas.pid, None if raas.state in ("alive", "suspect") else 0)
        for raas in status.raas
    ]


def _config(folder: Path) -> RunConfig:
    try:
        return RunConfig.model_validate(read_config(folder))
    except ValidationError as error:
        raise UserError(
            f"{folder / 'config.toml'} is not a config of this version of AstraFlow: "
            + "; ".join(render(error, RunConfig))
        ) from error


def _seconds(text: str) -> float:
    value = float(text)
    if not _SHORTEST_S <= value <= _LONGEST_S:
        raise argparse.ArgumentTypeError(
            f"{text} is not between {_SHORTEST_S:g} and {_LONGEST_S:g}"
        )
    return value
