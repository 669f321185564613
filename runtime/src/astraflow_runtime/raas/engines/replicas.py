"""The engines of one policy: a request goes to one of them, control calls go to all."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from astraflow_core.errors import AstraFlowError, WrongVersion
from astraflow_core.types import GenerateRequest, GenerateResult, Images
from astraflow_engine_host.protocol import HostGone
from astraflow_runtime.raas.engines.host_client import HostClient
from astraflow_runtime.raas.engines.replica import Replica
from astraflow_runtime.raas.engines.supervised_engine import MAX_DEATHS
from astraflow_wire.messages import Wait

log = logging.getLogger("astraflow.raas")
SESSIONS = 4096
"""The number of recently used sessions whose replica is remembered."""

_WORST = {"version": min, "kv_cache_usage": max}
"""Gauges that are not summed over replicas."""


class Replicas:
    """Routes requests by load; those of a session go to the replica that has its cache, while it
    accepts them. A request that is pinned to a version waits up to ``pin_wait_s`` for a replica at
    that version.
    """

    def __init__(self, members: Sequence[Replica], pin_wait_s: float = 120.0) -> None:
        self.policy = members[0].engine.policy
        self.members = list(members)
        self._pin_wait_s = pin_wait_s
        self._sessions: OrderedDict[str, Replica] = OrderedDict()
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """A host started, is gone, or stopped or resumed responding, or a version was loaded:
        waiting requests check again.
        """
        self._changed.set()

    # -- data plane ------------------------------------------------------------------------------

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """``Engine.generate`` on one of them. A request whose host dies is retried on another
        replica, or on the restarted host once it serves a version, so that an episode survives its
        host. It fails with :class:`HostGone` after as many hosts died as may die in a row, since it
        may be the cause, and with :class:`WrongVersion` if it is pinned and no replica reaches that
        version in time. The deadline is that of the episode.
        """
        for deaths in range(1, MAX_DEATHS + 1):
            replica = await self._route(request)
            replica.routed += 1
            try:
                return await replica.engine.generate(request)
            except HostGone as gone:
                if deaths == MAX_DEATHS:
                    raise
                log.info("request %s is retried: %s", request.id, gone)
        raise AssertionError("the last failure is raised")

    async def score(
        self, tokens: npt.NDArray[np.int32], images: Images = ()
    ) -> npt.NDArray[np.float32]:
        """``Engine.score`` on the least loaded; retried as :meth:`generate` is."""
        for deaths in range(1, MAX_DEATHS + 1):
            await self.available()
            replica = self.choose("", None)
            assert replica is not None
            try:
                score = replica.engine.score
                if images:
                    score = partial(score, images=images)
                return await score(tokens, self._pin_wait_s)
            except HostGone as gone:
                if deaths == MAX_DEATHS:
                    raise
                log.info("the scoring of %d tokens is retried: %s", len(tokens), gone)
        raise AssertionError("the last failure is raised")

    async def _route(self, request: GenerateRequest) -> Replica:
        if request.pinned_version is None:
            await self.available()
        else:
            await self._until_pinned(request)
        replica = self.choose(request.session, request.pinned_version)
        assert replica is not None
        return replica

    def choose(self, session: str, pinned: int | None) -> Replica | None:
        """The replica for a request, if any accepts it: that of its session, else the least loaded;
        a silent one only if all are.
        """
        able = [member for member in self.members if member.can_take(pinned)]
        able = [member for member in able if member.engine.answers] or able
        if not able:
            return None
        chosen = self._sessions.get(session)
        if chosen not in able:
            chosen = min(able, key=lambda member: (member.load, member.routed))
        if session:
            self._sessions[session] = chosen
            self._sessions.move_to_end(session)
            if len(self._sessions) > SESSIONS:
                self._sessions.popitem(last=False)
        return chosen

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._changed.clear()
            await self._changed.wait()

    async def available(self) -> None:
        """Wait until a replica accepts requests; the caller sets the deadline."""
        await self._until(lambda: any(member.can_take(None) for member in self.members))

    async def _until_pinned(self, request: GenerateRequest) -> None:
        pinned = request.pinned_version
        try:
            async with asyncio.timeout(self._pin_wait_s):
                await self._until(lambda: any(m.can_take(pinned) for m in self.members))
        except TimeoutError:
            served = ", ".join(str(m.serving()) for m in self.members)
            raise WrongVersion(
                f"request {request.id} is pinned to version {pinned} of policy {self.policy!r}, which no "
                f"replica loaded within {self._pin_wait_s:g} s (they serve {served})"
            ) from None

    # -- control plane ---------------------------------------------------------------------------

    async def to_all(
        self, call: Callable[[HostClient], Awaitable[None]]
    ) -> dict[int, AstraFlowError | None]:
        """Make the same call to every replica at once: number → its error, or ``None`` if it was obeyed. One
        without a host has an error too."""

        async def one(replica: Replica) -> AstraFlowError | None:
            try:
                await call(replica.engine.running().client)
            except AstraFlowError as error:
                return error
            return None

        outcomes = await asyncio.gather(*map(one, self.members))
        return {
            member.number: outcome for member, outcome in zip(self.members, outcomes, strict=True)
        }

    async def look(self, within_s: float) -> None:
        """Update the gauges of all engines; one that does not reply in time keeps its old ones."""
        await asyncio.gather(*(self._check_replica(member, within_s) for member in self.members))

    async def _check_replica(self, replica: Replica, within_s: float) -> None:
        host = replica.engine.host
        if host is None or host.silence is not None:
            return
        try:
            # Not the deadline of the call, which is suspended while the host is stopped.
            async with asyncio.timeout(within_s):
                replica.gauges = await host.client.health(2 * within_s)
        except (AstraFlowError, ValueError, TimeoutError) as error:
            label = replica.engine.label
            log.info("no metrics from %s: %s", label, str(error) or "no reply in time")

    # -- together --------------------------------------------------------------------------------

    @property
    def serving(self) -> int | None:
        """The oldest version served by a replica; ``None`` while none serves any."""
        found = [version for m in self.members if (version := m.serving()) is not None]
        return min(found, default=None)

    @property
    def answering(self) -> float:
        """The share of replicas that accept requests and respond."""
        able = [m for m in self.members if m.can_take(None) and m.engine.answers]
        return len(able) / len(self.members)

    @property
    def context_length(self) -> int:
        """The most tokens of a sequence; :class:`HostGone` if no host runs."""
        hosts = [member.engine.host for member in self.members]
        lengths = [host.context_length for host in hosts if host is not None]
        return min(lengths) if lengths else self.members[0].engine.running().context_length

    @property
    def stopped_s(self) -> float:
        """Seconds for which their hosts were stopped, which no deadline counts."""
        return sum(member.engine.stopped_s for member in self.members)

    @property
    def restarts(self) -> int:
        """The number of host restarts."""
        return sum(member.engine.restarts for member in self.members)

    @property
    def cpu_s(self) -> float:
        """CPU seconds of their hosts."""
        hosts = [member.engine.host for member in self.members]
        return sum(host.cpu_s for host in hosts if host is not None)

    def gauges(self) -> dict[str, float]:
        """The last gauges of the engines, summed; the smallest version and the largest share."""
        return _together([member.gauges for member in self.members])

    def pressure(self) -> dict[str, float]:
        """The gauges of the replicas that accept requests now."""
        able = [m for m in self.members if m.can_take(None) and m.engine.answers]
        return _together([member.gauges for member in able])

    def report(self) -> list[dict[str, Any]]:
        """The state of each, JSON-like."""
        return [member.report() for member in self.members]

    def waits(self) -> list[Wait]:
        """Waits for hosts that are silent."""
        hosts = [member.engine.host for member in self.members]
        return [wait for host in hosts if host is not None and (wait := host.wait()) is not None]


def _together(each: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for gauges in each for name in gauges)
    return {
        name: _WORST.get(name, sum)([gauges[name] for gauges in each if name in gauges])
        for name in names
    }
