"""The client of a RaaS for the dataflow, for our RaaS and any other."""

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
from astraflow_wire.http.drafts import AskDrafts, PastSequence, decode_drafts
from astraflow_wire.limits import sendable

log = logging.getLogger("astraflow.wire")
T = TypeVar("T")
ORIGIN, START = "ASTRAFLOW_ORIGIN", "ASTRAFLOW_START"
"""Environment variables set by a launcher: its id, and how often it has restarted this process."""
FIRST_TRY_S = 10.0
"""How long the first attempt of a small call waits for its reply, beyond what the dataflow may hold it back."""
CONFLICT = 409
UNKNOWN = (404, CONFLICT)
"""Statuses of the dataflow for an unknown RaaS or task."""


class RaasClient:
    """Calls of the RaaS ``raas``, which runs up to ``capacity`` episodes of ``policies`` at once.
    ``on_notices`` is called with the notices of every reply. A call without a reply, or with a 5xx, is
    retried until its deadline (by default ``deadline_s``): then
    :class:`astraflow_core.errors.DeadlineExceeded`. If the dataflow does not know this RaaS, it
    registers again. Other 4xx raise :class:`astraflow_core.errors.Refused`; its subclass
    :class:`astraflow_core.errors.RaasRefused` means that this RaaS cannot participate, for example
    because another one has its name: it must exit. ``serving``, ``seen`` and ``digests`` are by
    policy: the version served now, the newest known, the digest of the version served, by which the
    dataflow recognises weights that its run does not have. Metrics that the dataflow would reject (not finite, too
    many, too long a name) are left out of a report. ``packages``: those of the run that it has installed, which the dataflow
    compares with its own; none by default, for a RaaS of other software.
    """

    def __init__(
        self,
        client: AsyncClient,
        raas: str,
        policies: Sequence[str],
        capacity: int,
        on_notices: Callable[[messages.Notices], None],
        deadline_s: float = 60.0,
        packages: Mapping[str, str] | None = None,
    ) -> None:
        self.deadline_s = deadline_s
        self.incarnation = 0
        """The number of the last registration, which groups carry too."""
        self.renew_s = 1.0
        """How often to renew at least; the dataflow says it in its reply to :meth:`register`."""
        self.last_beat: messages.RenewLeases | None = None
        """What :meth:`renew` sent last."""
        self._client, self._raas, self._on_notices = client, raas, on_notices
        self._policies, self._capacity = list(policies), capacity
        self._packages = dict(packages or {})
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
                packages=self._packages,
            )
            try:
                answer = await self._client.post(
                    "/v1/raas/register",
                    hello,
                    messages.RaasRegistered,
                    deadline_s=deadline_s or self.deadline_s,
                    first_try_s=FIRST_TRY_S,
                )
            except Refused as error:
                raise RaasRefused(error.status, str(error)) from error
            self.renew_s = answer.renew_s
            self.incarnation = answer.incarnation
        self._on_notices(answer.notices)

    async def lease(
        self,
        free: int,
        wait_s: float,
        serving: Mapping[str, int],
        seen: Mapping[str, int],
        digests: Mapping[str, str] | None = None,
    ) -> list[messages.Task]:
        """Tasks for up to ``free`` episodes; waits up to ``wait_s`` for them, less if there are
        notices. ``free = 0`` polls for notices alone.
        """
        asked = messages.LeaseTasks(
            raas=self._raas,
            incarnation=self.incarnation,
            free=free,
            wait_s=wait_s,
            serving=dict(serving),
            seen=dict(seen),
            digests=dict(digests or {}),
        )
        longest_s = self.deadline_s + wait_s
        answer = await self._or_reregister(
            self._client.post(
                "/v1/tasks/lease",
                asked,
                messages.TasksLeased,
                deadline_s=longest_s,
                first_try_s=wait_s + FIRST_TRY_S,
            ),
            longest_s,
            "lease",
        )
        if answer is None:
            return []
        self._on_notices(answer.notices)
        return answer.tasks

    async def renew(
        self,
        tasks: Sequence[str],
        serving: Mapping[str, int],
        seen: Mapping[str, int],
        metrics: Mapping[str, float] | None = None,
        waits: Sequence[messages.Wait] = (),
        deadline_s: float | None = None,
        digests: Mapping[str, str] | None = None,
    ) -> None:
        """The heartbeat, with all leased ``tasks``."""
        beat = messages.RenewLeases(
            raas=self._raas,
            incarnation=self.incarnation,
            tasks=list(tasks),
            serving=dict(serving),
            seen=dict(seen),
            metrics=sendable(metrics or {}),
            waits=list(waits),
            digests=dict(digests or {}),
        )
        self.last_beat = beat
        longest_s = deadline_s or self.deadline_s
        answer = await self._or_reregister(
            self._client.post(
                "/v1/tasks/renew",
                beat,
                messages.LeasesRenewed,
                deadline_s=longest_s,
                first_try_s=FIRST_TRY_S,
            ),
            longest_s,
            "renew",
        )
        if answer is not None:
            self._on_notices(answer.notices)

    async def push(self, body: bytes) -> messages.GroupPushed | None:
        """Push a group (:func:`astraflow_wire.groups.encode_group`); ``None`` if its lease was lost
        meanwhile, so that the group is not needed.
        """
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
        """Report why there is no group of ``task``; ``fatal`` if no other attempt can succeed;
        ``environment``: the kind of failure, if it was an environment that failed."""
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

    async def drafts(
        self, task: str, most_bytes: Mapping[str, int], deadline_s: float
    ) -> list[PastSequence]:
        """Sequences of earlier groups of the prompt of a leased task, of each policy ``most_bytes`` at most; none if it is not
        leased any longer."""
        asked = AskDrafts(
            raas=self._raas, task=task, most_bytes=dict(most_bytes), incarnation=self.incarnation
        )
        body = await self._client.post_for_bytes("/v1/tasks/drafts", asked, deadline_s=deadline_s)
        return decode_drafts(body)

    async def leave(self, reason: str, deadline_s: float | None = None) -> None:
        """Give all leases back."""
        farewell = messages.LeaveRaas(raas=self._raas, incarnation=self.incarnation, reason=reason)
        await self._client.post(
            "/v1/raas/leave", farewell, messages.Done, deadline_s=deadline_s or self.deadline_s
        )

    async def _or_reregister(self, call: Awaitable[T], deadline_s: float, what: str) -> T | None:
        """The reply; ``None`` if this RaaS had to register again, or should retry."""
        number = self.incarnation
        try:
            answer = await call
        except Refused as error:
            if error.status not in UNKNOWN:
                raise
            if number != self.incarnation:
                return None  # it has registered again since the call was sent
            if error.status == CONFLICT:
                # Once: this call made the run fail, and the next one gets the end. Twice: another
                # process has the name.
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
