"""Which requests to the dataflow the token of each role includes."""

from __future__ import annotations

from typing import Any

from astraflow_core.errors import Refused
from astraflow_wire.http.access import Grant, Role

RIGHTS: dict[str, Role] = {
    "/v1/raas/register": "raas",
    "/v1/raas/leave": "raas",
    "/v1/tasks/lease": "raas",
    "/v1/tasks/renew": "raas",
    "/v1/tasks/fail": "raas",
    "/v1/tasks/drafts": "raas",
    "/v1/groups": "raas",
    "/v1/versions/offer": "raas",
    "/v1/trainers/register": "trainer",
    "/v1/trainers/failed": "trainer",
    "/v1/versions": "trainer",
    "/v1/versions/recover": "trainer",
    "/v1/batches/next": "trainer",
    "/v1/batches/release": "trainer",
    "/v1/batches/ack": "trainer",
    "/v1/raas/add": "operator",
    "/v1/raas/drain": "operator",
    "/v1/stop": "operator",
    "/v1/data_policies/swap": "operator",
    "/v1/access/revoke": "operator",
}
"""Path of each call that changes something → the one role that it belongs to."""
_PROCESSES = ("raas", "trainer")


def includes(grant: Grant, method: str, path: str) -> bool:
    """Whether a token that is not the run's includes a request. What plugins add belongs to people: a viewer reads it, an
    operator may do all."""
    if path in RIGHTS:
        return grant.role == RIGHTS[path]
    if method in ("GET", "HEAD"):
        return grant.role not in _PROCESSES or path.startswith("/v1/")
    return grant.role == "operator"


def check_sender(grant: Grant, message: Any) -> None:
    """``Refused`` (403) if a RaaS or a trainer sends a message in the name of another one."""
    if grant.role in _PROCESSES:
        stated = message.raas if grant.role == "raas" else message.policy
        if stated != grant.name:
            raise Refused(403, f"{grant} does not include requests in the name of {stated!r}")
