"""``astraflow status | waits``: show the state of a running run."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from astraflow_core.errors import UserError
from astraflow_runtime.cli.helping import teach
from astraflow_runtime.cli.output import print_json, print_line, print_tree
from astraflow_runtime.cli.running.asking import add_dataflow, asking
from astraflow_runtime.cli.running.secrets import running_run

_DEADLINE_S = 10.0
_NEWEST = 4


def add_status(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``status``."""
    _add_view(parser, "status")


def add_waits(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``waits``."""
    _add_view(parser, "waits")


def _add_view(parser: argparse.ArgumentParser, view: str) -> None:
    add_where(parser)
    parser.set_defaults(command=run, view=view)
    teach(parser, "processes.md", view, f"{view} --run quickstart-20260102-030405 --json")


def add_where(parser: argparse.ArgumentParser) -> None:
    """Declare where a running run is found, and ``--json``."""
    add_dataflow(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Query the dataflow and print the reply."""
    from astraflow_wire.status import read_status, read_waits

    folder = running_run(arguments.run, arguments.dataflow)
    arguments.run = folder and str(folder)  # the newest run is printed once
    answer = ask(arguments)
    (read_status if arguments.view == "status" else read_waits)(answer)  # refuses what is malformed
    if folder and arguments.view == "status" and (places := online_places(folder)):
        answer = answer | {"online": places}
    if arguments.json:
        print_json(answer)
    elif answer:
        print_tree(_shortened(answer))
    else:
        print_line(f"no {arguments.view}")
    return 0


def online_places(run: Path) -> list[dict[str, str]]:
    """The endpoints of RaaS that accept episodes of external services: ``raas``, ``url``, and
    ``token``, the path of its file. Such a workflow writes ``RUN/online/RAAS.json``.
    """
    found = []
    for file in sorted((run / "online").glob("*.json")):
        try:
            said = json.loads(file.read_bytes())
            found.append({"raas": file.stem, "url": str(said["url"]), "token": str(said["token"])})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{file} does not contain the address for episodes ({error!r}); the RaaS rewrites it when it restarts"
            ) from error
    return found


def _shortened(answer: Any) -> Any:
    """The status with the newest evaluations only, for plain output."""
    match answer:
        case {"eval": {"history": list(history), **others}} if len(history) > _NEWEST:
            some = {f"history, last {_NEWEST} of {len(history)}": history[-_NEWEST:]}
            return answer | {"eval": some | others}
    return answer


def ask(arguments: argparse.Namespace) -> Any:
    """The JSON of one view, with any fields that a newer dataflow adds."""
    with asking(arguments.run, arguments.dataflow, arguments.token_file) as client:
        return client.get_json(f"/v1/{arguments.view}", deadline_s=_DEADLINE_S)
