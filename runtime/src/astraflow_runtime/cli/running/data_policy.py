"""``astraflow data-policy swap | rollback``: change a data policy of a running run."""

from __future__ import annotations

import argparse
import json
import time
import tomllib
import uuid
from typing import TYPE_CHECKING, Any

from astraflow_core.errors import UserError
from astraflow_runtime.cli.helping import teach
from astraflow_runtime.cli.output import print_line
from astraflow_runtime.cli.running.asking import add_dataflow, asking
from astraflow_runtime.cli.running.pool import user

if TYPE_CHECKING:
    from astraflow_wire.http.client import SyncClient
    from astraflow_wire.messages import PolicySwapped

_DEADLINE_S = 30.0
_EXAMPLES = {
    "swap": "data-policy swap solver replay '{ use = \"replay\", ratio = 0.5 }'",
    "rollback": "data-policy rollback solver replay",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.description = (
        "A data policy decides which prompts and groups a run uses: an entry of [prompts] data or of "
        "[policies.NAME] data. It is not a policy of [policies], which is a model that is trained."
    )
    teach(parser, "configuration.md", *_EXAMPLES.values())
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    swap = actions.add_parser("swap", help="replace it by another data policy, or change its keys")
    rollback = actions.add_parser("rollback", help="undo the last swap")
    for action in (swap, rollback):
        add_dataflow(action)
        action.add_argument(
            "place", metavar="PLACE", help="'prompts', or the name of a policy of [policies]"
        )
        action.add_argument("name", metavar="NAME", help="the data policy's name, or component")
        teach(action, "configuration.md", _EXAMPLES[action.prog.split()[-1]])
        action.add_argument(
            "--author", default="", help="author of the change; default: the current user"
        )
    swap.add_argument("table", metavar="TABLE", help="""as in the config: '{ use = "NAME" }'""")
    rollback.set_defaults(table="")
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Send the change to the dataflow and print the result."""
    table = read_table(arguments.table) if arguments.table else {}
    with asking(arguments.run, arguments.dataflow, arguments.token_file) as client:
        answer = swap_data_policy(
            client, arguments.place, arguments.name, arguments.author or user(), table
        )
    shown = {key: value for key, value in answer.table.items() if key != "name"}
    if not shown.get("shadow"):
        shown.pop("shadow", None)
    keys = ", ".join(f"{key} = {json.dumps(value)}" for key, value in shown.items())
    print_line(f"swap {answer.number}: {arguments.name} of {arguments.place} has {keys}")
    return 0


def swap_data_policy(
    client: SyncClient, place: str, name: str, author: str, table: dict[str, Any], id: str = ""
) -> PolicySwapped:
    """Replace a data policy, or with an empty ``table`` restore the previous one. ``id``: of the request in the audit
    log."""
    from astraflow_wire.messages import PolicySwapped, SwapPolicy

    message = SwapPolicy(
        id=id or uuid.uuid4().hex,
        place=place,
        name=name,
        author=author,
        at=time.time(),
        table=table,
    )
    return client.post("/v1/data_policies/swap", message, PolicySwapped, deadline_s=_DEADLINE_S)


def read_table(text: str) -> dict[str, Any]:
    """TABLE as the command line has it; :class:`UserError` if that is not a table."""
    try:
        table = tomllib.loads(f"table = {text}")["table"]
    except tomllib.TOMLDecodeError as error:
        raise UserError(
            f"TABLE is not TOML: {error}; write '{{ use = \"NAME\", key = 1 }}'"
        ) from error
    if not isinstance(table, dict) or not table:
        raise UserError(f"TABLE must be a table with use and keys, not {text!r}")
    return table
