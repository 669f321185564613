"""``astraflow token``: tokens with less than all rights for a running run, and their end."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from astraflow_core.errors import UserError
from astraflow_runtime.cli.helping import teach
from astraflow_runtime.cli.output import print_line
from astraflow_runtime.cli.run_directory import add_run
from astraflow_runtime.cli.running.asking import asking
from astraflow_runtime.cli.running.pool import user
from astraflow_runtime.cli.running.secrets import running_dataflow

if TYPE_CHECKING:
    from astraflow_wire.http.access import Role

_DAY_S = 86400
_DEADLINE_S = 30.0
_ROLES = {
    "raas": "leases tasks and pushes groups, in its own name",
    "trainer": "takes the batches of one policy and publishes its versions",
    "operator": "changes the run: adds and drains RaaS, swaps data policies, stops it, revokes tokens",
    "viewer": "looks: status, waits, metrics, pages",
}
_PEOPLE_DAYS = 7.0
"""How long a token of a person is valid if nothing else is asked for."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``token``."""
    _add_who(parser)
    parser.add_argument(
        "--days",
        type=float,
        help=f"days until it expires; default: {_PEOPLE_DAYS:g} for operator and viewer, the end of the run for raas and trainer",
    )
    parser.set_defaults(command=run_token)
    teach(parser, "security.md", "token --role viewer --name ada --days 30")


def add_revoke(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``token revoke``."""
    _add_who(parser)
    parser.set_defaults(command=run_revoke)
    teach(parser, "security.md", "token revoke --role raas --name raas-1")


def run_token(arguments: argparse.Namespace) -> int:
    """Print a token, alone, on standard output."""
    from astraflow_wire.http.access import process_token

    role: Role = arguments.role
    days = arguments.days
    if days is None and role in ("operator", "viewer"):
        days = _PEOPLE_DAYS
    if days is not None and not 0 < days <= 3650:
        raise UserError(f"--days {days:g}: expected more than 0 and at most 3650")
    ends = 0 if days is None else int(time.time() + days * _DAY_S)
    _, token = running_dataflow(arguments.run, arguments.dataflow, arguments.token_file)
    with _asking(arguments) as client:
        oldest = client.get_json("/v1/access", deadline_s=_DEADLINE_S)["oldest"]
    generation = oldest.get(f"{role}/{arguments.name}", 0)
    try:
        made = process_token(token, role, arguments.name, generation, ends)
    except ValueError as error:
        raise UserError(str(error)) from error
    print_line(made)
    until = (
        "the end of the run"
        if days is None
        else time.strftime("%Y-%m-%d %H:%M", time.localtime(ends))
    )
    print(f"valid until {until}; it {_ROLES[role]}", file=sys.stderr)
    return 0


def run_revoke(arguments: argparse.Namespace) -> int:
    """End the tokens of a process or a person."""
    from astraflow_wire.messages import RevokeToken, TokenRevoked

    message = RevokeToken(role=arguments.role, name=arguments.name, author=user())
    with _asking(arguments) as client:
        client.post("/v1/access/revoke", message, TokenRevoked, deadline_s=_DEADLINE_S)
    print_line(f"the tokens of {arguments.role} {arguments.name!r} are revoked")
    return 0


def _add_who(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--role", required=True, choices=list(_ROLES), help="what it may do")
    parser.add_argument(
        "--name", required=True, help="name of the RaaS, the trained policy or the person"
    )
    parser.add_argument("--dataflow", help="URL of the dataflow, instead of a run directory")
    parser.add_argument(
        "--token-file",
        type=Path,
        help="file with the run's token; default: that of the run directory",
    )


def _asking(arguments: argparse.Namespace):  # type: ignore[no-untyped-def]
    return asking(arguments.run, arguments.dataflow, arguments.token_file)
