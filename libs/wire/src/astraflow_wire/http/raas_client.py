"""What a RaaS says to the dataflow, for ours and for any other."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from astraflow_core.errors import RaasRefused, Refused
from astraflow_wire import messages
from astraflow_wire.http.client import AsyncClient
from astraflow_wire.limits import sendable

log = logging.getLogger("astraflow.wire")
T = TypeVar("T")
ORIGIN, START = "ASTRAFLOW_ORIGIN", "ASTRAFLOW_START"
"""Set by a launcher: its own id, and how often it has started this process again."""
CONFLICT = 409
UNKNOWN = (404, CONFLICT)
"""What the dataflow answers to a RaaS or about a task that it does not know (any longer)."""


class RaasClient:
    """Calls of the RaaS ``raas``, which has room for ``capacity`` episodes of ``policies`` at once.

    ``hear`` is called with the news of every reply. A call that the dataflow does not answer, or with a 5xx, is tried
    again until its deadline, ``deadline_s`` unless it names another: then
    :class:`astraflow_core.errors.DeadlineExceeded`. A dataflow that no longer knows this RaaS is told again who
    it is. Other 4xx raise :class:`astraflow_core.errors.Refused`; of it :class:`astraflow_core.errors.RaasRefused` says that
    this RaaS is not taken in, as when another one has its name: then it is to end. ``serving`` and ``seen`` are by policy: the version
    served now, the newest known. Metrics that the dataflow would refuse (not finite, too many, too long a name) are
    left out of a report.
    """

    def __init__(
        self,
        client: AsyncClient,
        raas: str,
        policies: Sequence[str],
        capacity: int,
        hear: Callable[[messages.Notices], None],
        deadline_s: float = 60.0,
    ) -> None:
        self.deadline_s = deadline_s
        self.incarnation = 0
        """The number of the last registration, which groups carry too."""
        self.renew_s = 1.0
        """How often to renew at least; the dataflow says it in its reply to :meth:`register`."""
        self.last_beat: messages.RenewLeases | None = None
        """What :meth:`renew` sent last."""
        self._client, self._raas, self._hear = client, raas, hear
        self._policies, self._capacity = list(policies), capacity
        self._origin = os.environ.get(ORIGIN) or secrets.token_hex(8)
        self._start = int(os.environ.get(START) or 0)
        self._registering = asyncio.Lock()
        self._conflicts: set[str] = set()

    async def register(self, deadline_s: float | None = None) -> None:
        """The first call."""
        known = self.incarnation
        async with self._registering:
            if self.incarnation != known:
                return  # another call noticed at the same time that this is needed
            hello = messages.RegisterRaas(
                raas=self._raas,
                pid=os.getpid(),
                host=socket.gethostname(),
                policies=self._policies,
                capacity=self._capacity,
                origin=self._origin,
                start=self._start,
            )
            try:
                answer = await self._client.post(
                    "/v1/raas/register",
                    hello,
                    messages.RaasRegistered,
                    deadline_s=deadline_s or self.deadline_s,
                )
            except Refused as error:
                raise RaasRefused(error.status, str(error)) from error
            self.renew_s = answer.renew_s
            self.incarnation = answer.incarnation
        self._hear(answer.news)

    async def lease(
        self, free: int, wait_s: float, serving: Mapping[str, int], seen: Mapping[str, int]
    ) -> list[messages.Task]:
        """Up to ``free`` episodes' worth of tasks; waits up to ``wait_s`` for them, less if there are news. With
        ``free = 0`` a poll for the news alone."""
        asked = messages.LeaseTasks(
            raas=self._raas,
            incarnation=self.incarnation,
            free=free,
            wait_s=wait_s,
            serving=dict(serving),
            seen=dict(seen),
        )
        longest_s = self.deadline_s + wait_s
        answer = await self._known(
            self._client.post("/v1/tasks/lease", asked, messages.TasksLeased, deadline_s=longest_s),
            longest_s,
            "lease",
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
            incarnation=self.incarnation,
            tasks=list(tasks),
            serving=dict(serving),
            seen=dict(seen),
            metrics=sendable(metrics or {}),
            waits=list(waits),
        )
        self.last_beat = beat
        longest_s = deadline_s or self.deadline_s
        answer = await self._known(
            self._client.post(
                "/v1/tasks/renew", beat, messages.LeasesRenewed, deadline_s=longest_s
            ),
            longest_s,
            "renew",
        )
        if answer is not None:
            self._hear(answer.news)

    async def push(self, body: bytes) -> messages.GroupPushed | None:
        """Push a group (:func:`astraflow_wire.groups.encode_group`); ``None`` if its lease was lost meanwhile,
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

    async def fail(self, task: str, error: str, fatal: bool = False, environment: str = "") -> None:
        """Say why there is no group of ``task``; ``fatal`` if no other attempt can do better; ``environment``: the kind of
        failure, if it was an environment that failed."""
        told = messages.FailTask(
            raas=self._raas,
            incarnation=self.incarnation,
            task=task,
            error=error,
            fatal=fatal,
            environment=environment,
        )
        try:
            await self._client.post(
                "/v1/tasks/fail", told, messages.Done, deadline_s=self.deadline_s
            )
        except Refused as refused:
            log.info("the failure of task %s came too late: %s", task, refused)

    async def leave(self, reason: str, deadline_s: float | None = None) -> None:
        """Give all leases back."""
        farewell = messages.LeaveRaas(raas=self._raas, incarnation=self.incarnation, reason=reason)
        await self._client.post(
            "/v1/raas/leave", farewell, messages.Done, deadline_s=deadline_s or self.deadline_s
        )

    async def _known(self, call: Awaitable[T], deadline_s: float, what: str) -> T | None:
        """The reply; ``None`` if this RaaS had to register again, or shall look again."""
        number = self.incarnation
        try:
            answer = await call
        except Refused as error:
            if error.status not in UNKNOWN:
                raise
            if number != self.incarnation:
                return None  # it has registered again since the call was sent
            if error.status == CONFLICT:
                # Once: this very call made the run fail, and the next one learns of the end. Twice: another process
                # has the name.
                if what in self._conflicts:
                    raise RaasRefused(error.status, str(error)) from error
                self._conflicts.add(what)
                return None
            log.warning(
                "the dataflow no longer knows %s (%s); registering again", self._raas, error
            )
            await self.register(deadline_s)
            return None
        self._conflicts.discard(what)
        return answer
