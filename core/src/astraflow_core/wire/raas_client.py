"""What a RaaS says to the dataflow, for ours and for any other."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from astraflow_core.errors import Refused
from astraflow_core.wire import messages
from astraflow_core.wire.client import Client

log = logging.getLogger("astraflow.wire")
T = TypeVar("T")
UNKNOWN = (404, 409)
"""What the dataflow answers to a RaaS or about a task that it does not know (any more)."""


class RaasClient:
    """Calls of the RaaS ``raas``, which has room for ``capacity`` episodes of ``policies`` at once.

    ``hear`` is called with the news of every reply. A call that the dataflow does not answer, or with a 5xx, is tried
    again until its deadline, ``deadline_s`` unless it names another: then
    :class:`astraflow_core.errors.DeadlineExceeded`. A dataflow that does not know this RaaS any more is told again who
    it is. Other 4xx raise :class:`astraflow_core.errors.Refused`. ``serving`` and ``seen`` are by policy: the version
    served now, the newest heard of.
    """

    def __init__(
        self,
        client: Client,
        raas: str,
        policies: Sequence[str],
        capacity: int,
        hear: Callable[[messages.News], None],
        deadline_s: float = 60.0,
    ) -> None:
        self.deadline_s = deadline_s
        self.renew_s = 1.0
        """How often to renew at least; the dataflow says it in its reply to :meth:`register`."""
        self._client, self._raas, self._hear = client, raas, hear
        self._policies, self._capacity = list(policies), capacity
        self._registering = asyncio.Lock()
        self._registrations = 0

    async def register(self, deadline_s: float | None = None) -> None:
        """The first call."""
        known = self._registrations
        async with self._registering:
            if self._registrations != known:
                return  # another call noticed at the same time that this is needed
            hello = messages.RegisterRaas(
                raas=self._raas,
                pid=os.getpid(),
                host=socket.gethostname(),
                policies=self._policies,
                capacity=self._capacity,
            )
            answer = await self._client.post(
                "/v1/raas/register",
                hello,
                messages.RaasRegistered,
                deadline_s=deadline_s or self.deadline_s,
            )
            self.renew_s = answer.renew_s
            self._registrations += 1
        self._hear(answer.news)

    async def lease(
        self, free: int, wait_s: float, serving: Mapping[str, int], seen: Mapping[str, int]
    ) -> list[messages.Task]:
        """Up to ``free`` episodes' worth of tasks; waits up to ``wait_s`` for them, less if there are news. With
        ``free = 0`` a poll for the news alone."""
        asked = messages.LeaseTasks(
            raas=self._raas, free=free, wait_s=wait_s, serving=dict(serving), seen=dict(seen)
        )
        longest_s = self.deadline_s + wait_s
        answer = await self._known(
            self._client.post("/v1/tasks/lease", asked, messages.TasksLeased, deadline_s=longest_s),
            longest_s,
        )
        if answer is None:
            return []
        self._hear(answer.news)
        return answer.tasks

    async def renew(
        self,
        tasks: Sequence[str],
        serving: Mapping[str, int],
        seen: Mapping[str, int],
        metrics: Mapping[str, float] | None = None,
        waits: Sequence[messages.Wait] = (),
        deadline_s: float | None = None,
    ) -> None:
        """The heartbeat, with all ``tasks`` that are held."""
        beat = messages.RenewLeases(
            raas=self._raas,
            tasks=list(tasks),
            serving=dict(serving),
            seen=dict(seen),
            metrics=dict(metrics or {}),
            waits=list(waits),
        )
        longest_s = deadline_s or self.deadline_s
        answer = await self._known(
            self._client.post(
                "/v1/tasks/renew", beat, messages.LeasesRenewed, deadline_s=longest_s
            ),
            longest_s,
        )
        if answer is not None:
            self._hear(answer.news)

    async def push(self, body: bytes) -> messages.GroupPushed | None:
        """Push a group (:func:`astraflow_core.wire.groups.encode_group`); ``None`` if its lease was lost meanwhile,
        so that nobody wants it."""
        try:
            return await self._client.post_bytes(
                "/v1/groups", body, messages.GroupPushed, deadline_s=self.deadline_s
            )
        except Refused as error:
            if error.status not in UNKNOWN:
                raise
            log.info("%s pushed a group too late: %s", self._raas, error)
            return None

    async def fail(self, task: str, error: str, fatal: bool = False) -> None:
        """Say why there is no group of ``task``; ``fatal`` if no other attempt can do better."""
        told = messages.FailTask(raas=self._raas, task=task, error=error, fatal=fatal)
        try:
            await self._client.post(
                "/v1/tasks/fail", told, messages.Done, deadline_s=self.deadline_s
            )
        except Refused as refused:
            log.info("the failure of task %s came too late: %s", task, refused)

    async def leave(self, reason: str, deadline_s: float | None = None) -> None:
        """Give all leases back."""
        farewell = messages.LeaveRaas(raas=self._raas, reason=reason)
        await self._client.post(
            "/v1/raas/leave", farewell, messages.Done, deadline_s=deadline_s or self.deadline_s
        )

    async def _known(self, call: Awaitable[T], deadline_s: float) -> T | None:
        """The reply; ``None`` if this RaaS had to register again."""
        try:
            return await call
        except Refused as error:
            if error.status not in UNKNOWN:
                raise
            log.warning(
                "the dataflow does not know %s any more (%s); it registers again", self._raas, error
            )
            await self.register(deadline_s)
            return None
