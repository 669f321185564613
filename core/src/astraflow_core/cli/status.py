"""``astraflow status | waits``: look into a running run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from astraflow_core.cli.asking import asking
from astraflow_core.cli.output import print_json, print_tree
from astraflow_core.cli.secrets import DATAFLOW, TOKEN

_DEADLINE_S = 10.0
_NEWEST = 4
_VIEWS = {
    "status": "state, policies, tasks and RaaS of a running run",
    "waits": "who waits for whom, since when and until when, in a running run",
}


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare both commands."""
    for view, text in _VIEWS.items():
        parser = commands.add_parser(view, help=text)
        add_where(parser)
        parser.set_defaults(command=run, view=view)


def add_where(parser: argparse.ArgumentParser) -> None:
    """Declare where a running run is found, and ``--json``."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--run", metavar="DIR", type=Path, help="run directory")
    which.add_argument("--dataflow", metavar="URL", help=f"default: environment {DATAFLOW}")
    parser.add_argument(
        "--token-file", type=Path, help=f"default: DIR/token, or environment {TOKEN}"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Ask the dataflow and print what it says."""
    answer = ask(arguments)
    if arguments.json:
        print_json(answer)
    elif answer:
        print_tree(_shortened(answer))
    else:
        print(f"no {arguments.view}")
    return 0


def _shortened(answer: Any) -> Any:
    """For people: the newest evaluations only, which a long run has many of."""
    match answer:
        case {"eval": {"history": list(history), **others}} if len(history) > _NEWEST:
            some = {f"history, last {_NEWEST} of {len(history)}": history[-_NEWEST:]}
            return answer | {"eval": some | others}
    return answer


def ask(arguments: argparse.Namespace) -> Any:
    """The JSON of one view."""
    with asking(arguments.run, arguments.dataflow, arguments.token_file) as client:
        return client.get_json(f"/v1/{arguments.view}", deadline_s=_DEADLINE_S)
