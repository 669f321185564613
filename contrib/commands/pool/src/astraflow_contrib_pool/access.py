"""Tokens of a pool: its own, which has all rights, and those derived from it, for hosts and for each tenant.

A token reads ``afp1.KIND.NAME.GENERATION.SIGNATURE`` (HMAC-SHA256, RFC 2104); the pool keeps no list of them. A higher
``generation`` of a tenant in the pool's file revokes the earlier ones.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from astraflow_wire.http.access import Access, Grant

Kind = Literal["host", "tenant"]
HOSTS = "hosts"
"""The name in the token of hosts."""

_FORM = "afp1."
_BEARER = "Bearer "
_PATHS: dict[Kind, dict[str, frozenset[str]]] = {
    "host": {
        "POST": frozenset({"/v1/hosts/renew", "/v1/hosts/leave"}),
        "GET": frozenset({"/v1/health"}),
    },
    "tenant": {
        "POST": frozenset({"/v1/runs/renew", "/v1/runs/leave"}),
        "GET": frozenset({"/v1/health", "/v1/status", "/v1/ledger"}),
    },
}


@dataclass(frozen=True, slots=True)
class PoolGrant(Grant):
    """Who calls: hosts, or the tenant ``name``."""

    kind: Kind = "tenant"

    def __str__(self) -> str:
        return "the token of hosts" if self.kind == "host" else f"the token of tenant {self.name!r}"


def pool_token(token: str, kind: Kind, name: str, generation: int = 0) -> str:
    """The token of hosts or of a tenant, derived from the ``token`` of the pool. Raises :class:`ValueError` for another one."""
    if token.startswith(_FORM):
        raise ValueError("only the token of the pool derives others")
    text = f"{_FORM}{kind}.{name}.{generation}"
    digest = hmac.digest(_key(token), text.encode(), "sha256")
    return f"{text}.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"


def may(grant: Grant, method: str, path: str) -> bool:
    """The rights of a grant that is not the pool's own."""
    return isinstance(grant, PoolGrant) and path in _PATHS[grant.kind].get(method, ())


def tenant_of(grant: Grant | None) -> str | None:
    """The tenant that calls; ``None`` for who has the pool's token."""
    return grant.name if isinstance(grant, PoolGrant) and grant.kind == "tenant" else None


class PoolAccess(Access):
    """Checks tokens; ``tenants``: name → generation that is valid."""

    roles = "`astraflow pool token` prints the token of a tenant, or that of hosts; the pool's own may do all"

    def __init__(self, token: str, tenants: Mapping[str, int]) -> None:
        super().__init__(token)
        known = [pool_token(token, "host", HOSTS)]
        self._grants = {known[0]: PoolGrant("viewer", HOSTS, kind="host")}
        for name, generation in tenants.items():
            derived = pool_token(token, "tenant", name, generation)
            self._grants[derived] = PoolGrant("viewer", name, generation, kind="tenant")

    def grant(self, header: str | bytes | None) -> Grant | None:
        """The owner of an ``Authorization`` header; ``None`` if it is not valid."""
        given = header.encode("latin-1", "replace") if isinstance(header, str) else header
        if given is None or not given.startswith((_BEARER + _FORM).encode()):
            # Tokens of runs, which have the form of our other services, are none of a pool.
            found = super().grant(given)
            return found if found is not None and found.role == "run" else None
        shown, found = given[len(_BEARER) :], None
        for token, grant in self._grants.items():
            if hmac.compare_digest(shown, token.encode()):
                found = grant
        return found

    def refusal(self, header: str | bytes | None) -> str:
        """Why a header is not valid."""
        if header is None:
            return (
                "there is no token; a run gives the token_file of its tenant, a host --token-file"
            )
        return (
            "the token is not of this pool, or was revoked; `astraflow pool token` prints a new one"
        )


def _key(token: str) -> bytes:
    return hmac.digest(token.encode(), b"astraflow pool access", "sha256")
