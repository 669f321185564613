"""``astraflow policy swap | rollback``: change a data policy of a running run."""

from __future__ import annotations

import argparse
import getpass
import json
import time
import tomllib
import uuid
from pathlib import Path
from typing import Any

from astraflow_core.cli.asking import asking
from astraflow_core.errors import UserError

_DEADLINE_S = 30.0


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser("policy", help="change a data policy of a running run")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    swap = actions.add_parser("swap", help="put another data policy, or other keys, in its place")
    rollback = actions.add_parser("rollback", help="go back to what was there before the last swap")
    for action in (swap, rollback):
        action.add_argument("run", metavar="RUN", type=Path, help="run directory")
        action.add_argument("place", metavar="PLACE", help="'prompts', or the name of a policy")
        action.add_argument("name", metavar="NAME", help="the data policy's name, or component")
        action.add_argument("--author", default="", help="who wants it; default: the user")
    swap.add_argument("table", metavar="TABLE", help="""as in the config: '{ use = "NAME" }'""")
    rollback.set_defaults(table="")
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Tell the dataflow and print what holds now."""
    from astraflow_core.wire.messages import PolicySwapped, SwapPolicy

    message = SwapPolicy(
        id=uuid.uuid4().hex,
        place=arguments.place,
        name=arguments.name,
        author=arguments.author or _user(),
        at=time.time(),
        table=_table(arguments.table) if arguments.table else {},
    )
    with asking(arguments.run) as client:
        answer = client.post(
            "/v1/data_policies/swap", message, PolicySwapped, deadline_s=_DEADLINE_S
        )
    shown = {key: value for key, value in answer.table.items() if key != "name"}
    if not shown.get("shadow"):
        shown.pop("shadow", None)
    keys = ", ".join(f"{key} = {json.dumps(value)}" for key, value in shown.items())
    print(f"swap {answer.number}: {arguments.name} of {arguments.place} has {keys}")
    return 0


def _table(text: str) -> dict[str, Any]:
    try:
        table = tomllib.loads(f"table = {text}")["table"]
    except tomllib.TOMLDecodeError as error:
        raise UserError(
            f"TABLE is not TOML: {error}; write '{{ use = \"NAME\", key = 1 }}'"
        ) from error
    if not isinstance(table, dict) or not table:
        raise UserError(f"TABLE must be a table with use and keys, not {text!r}")
    return table


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may know no name for its user
        return "unknown"
