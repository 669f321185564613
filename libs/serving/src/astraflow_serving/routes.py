"""Where the requests of an engine go: to its own server, or through a router in front of several."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from astraflow_core.errors import AstraFlowError, PreflightError
from astraflow_core.types import ComponentContext, GenerateRequest
from astraflow_serving.http import ServerClient

SESSION = "X-Session-ID"
"""The header by which vllm-router keeps the requests of a session together."""


def own_url(urls: Sequence[str], router: str | None, context: ComponentContext) -> str:
    """The server of this replica: one for all, or one for each. Raises :class:`PreflightError` unless
    each replica has its own where there are several, or where a router sends requests to all of them: a server
    without a replica would keep its weights."""
    count = context.replicas
    if len(urls) == count or (len(urls) == 1 and router is None):
        return urls[min(context.replica, len(urls) - 1)]
    raise PreflightError(
        f"the engine of {context.policy!r} has {len(urls)} servers in the key url and {count} replicas: each replica "
        "controls one server, so give as many"
    )


class Routes:
    """The data plane of an engine. ``own``: the client of its server, which it controls; ``router``: where requests
    go instead, unless they are pinned to a version, which only this engine can promise; ``others``: the other servers
    behind it, which must be notified when a request of ours is aborted."""

    def __init__(
        self,
        own: ServerClient,
        label: str,
        deadline_s: float,
        router: str | None,
        others: Sequence[str],
    ) -> None:
        self._own = own
        self._router = (
            None if router is None else ServerClient(f"{label} router", router, deadline_s)
        )
        self._others = [ServerClient(f"{label} server", url, deadline_s) for url in others]

    @property
    def routed(self) -> bool:
        """Whether there is a router."""
        return self._router is not None

    @property
    def servers(self) -> list[ServerClient]:
        """Every server that may run a request of ours; our own first."""
        return [self._own, *self._others]

    def client(self, request: GenerateRequest) -> ServerClient:
        """The client of the server to which a request goes."""
        if self._router is None or request.pinned_version is not None:
            return self._own
        return self._router

    def headers(self, request: GenerateRequest) -> dict[str, str]:
        """What a router should know of it."""
        return {SESSION: request.session} if self.routed and request.session else {}

    async def tell_others(self, path: str, body: Mapping[str, Any]) -> None:
        """Post to all servers but our own; one that has exited needs no request."""
        told = (client.post(path, body) for client in self._others)
        for answer in await asyncio.gather(*told, return_exceptions=True):
            if isinstance(answer, BaseException) and not isinstance(answer, AstraFlowError):
                raise answer

    async def close(self) -> None:
        """Close what was opened here."""
        for client in (*([self._router] if self._router else []), *self._others):
            await client.close()
