"""The tasks that a dataflow of the public protocol submitted, and the RaaS of ours that work on them."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from astraflow_core.errors import Refused
from astraflow_wire import messages
from astraflow_wire.groups import ReceivedGroup

Lane = Literal["", "eval_"]
MOST_RESULTS = 1 << 16
"""Tasks of a lane that wait, run or are not pulled."""


@dataclass
class Submitted:
    """A task of the number ``number`` of its lane, which RaaS has it, and when that one last named it."""

    lane: Lane
    number: int
    task: messages.Task
    raas: str = ""
    attempts: int = 0
    named: float = 0.0


@dataclass
class OwnRaas:
    """A RaaS of ours: the time of its last message, what it serves, and leases that it has lost."""

    incarnation: int
    capacity: int
    heard: float
    serving: dict[str, int] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    lost: dict[str, messages.RevokedLease] = field(default_factory=dict)


class OwnTasks:
    """Queue, leases and results of both lanes. ``lease_s``: a RaaS that is silent for longer loses its tasks; ``attempts``: how
    often a task is tried; ``convert`` makes the result of a group for the public dataflow."""

    def __init__(
        self,
        policies: list[str],
        lease_s: float,
        attempts: int,
        convert: Callable[[ReceivedGroup, dict[str, Any]], Any],
    ) -> None:
        self.policies, self.lease_s, self._attempts, self._convert = (
            policies,
            lease_s,
            attempts,
            convert,
        )
        self.raas: dict[str, OwnRaas] = {}
        self.announced: dict[str, messages.AnnouncementMessage] = {}
        self.stopping = False
        self.changed = asyncio.Condition()
        self._queue: deque[Submitted] = deque()
        self._leased: dict[str, Submitted] = {}
        self._results: dict[Lane, deque[dict[str, Any]]] = {"": deque(), "eval_": deque()}
        self._counts: dict[Lane, int] = {"": 0, "eval_": 0}
        self._incarnations = self._serial = self.epoch = 0

    async def note(self) -> None:
        """Something changed."""
        async with self.changed:
            self.changed.notify_all()

    # --- the public dataflow --------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether a RaaS serves every policy."""
        return any(set(each.serving) >= set(self.policies) for each in self.raas.values())

    @property
    def capacity(self) -> int:
        """Episodes at once."""
        return sum(each.capacity for each in self.raas.values())

    def outstanding(self, lane: Lane | None = None) -> list[Submitted]:
        """Tasks that wait or run."""
        found = [*self._queue, *self._leased.values()]
        return [each for each in found if lane is None or each.lane == lane]

    def pending(self, lane: Lane) -> int:
        """Results that were not pulled."""
        return len(self._results[lane])

    def submitted(self, lane: Lane) -> int:
        """Tasks of the lane so far."""
        return self._counts[lane]

    async def submit(self, lane: Lane, make: Callable[[str], messages.Task]) -> int:
        """Queue the task that ``make`` makes for an id; its number in its lane."""
        if len(self.outstanding(lane)) + self.pending(lane) >= MOST_RESULTS:
            raise ValueError(f"{MOST_RESULTS} tasks wait, run or are not pulled; the limit")
        number = self._counts[lane]
        self._serial += 1
        task = make(f"public-{self._serial}")
        self._counts[lane] += 1
        self._queue.append(Submitted(lane, number, task))
        await self.note()
        return number

    async def pull(self, lane: Lane, most: int, wait_s: float) -> list[dict[str, Any]]:
        """Results; waits for one."""
        results = self._results[lane]
        if not results and wait_s > 0:
            try:
                async with asyncio.timeout(wait_s), self.changed:
                    await self.changed.wait_for(lambda: bool(results))
            except TimeoutError:
                return []
        return [results.popleft() for _ in range(min(most, len(results)))]

    async def reset(self, lane: Lane) -> tuple[int, int]:
        """Give up the tasks of a lane and its results; how many tasks and results there were."""
        gone, dropped = self.outstanding(lane), len(self._results[lane])
        self._queue = deque(each for each in self._queue if each.lane != lane)
        for each in gone:
            if each.raas:
                self._revoke(each, "the public dataflow has given it up")
        self._results[lane].clear()
        if lane:
            self._counts[lane] = 0
        else:
            self.epoch += 1
        await self.note()
        return len(gone), dropped

    async def announce(self, entry: messages.AnnouncementMessage, wait_s: float) -> bool:
        """Announce a version; whether every RaaS serves it within ``wait_s``."""
        self.announced[entry.policy] = entry
        await self.note()

        def served() -> bool:
            return bool(self.raas) and all(
                each.serving.get(entry.policy, -1) >= entry.version for each in self.raas.values()
            )

        try:
            async with asyncio.timeout(wait_s), self.changed:
                await self.changed.wait_for(served)
        except TimeoutError:
            return False
        return True

    # --- RaaS of ours ---------------------------------------------------------------------------

    async def register(self, asked: messages.RegisterRaas) -> int:
        """The incarnation of a RaaS; one of the same name before it has lost its tasks."""
        if unknown := set(asked.policies) ^ set(self.policies):
            raise Refused(
                400, f"the run has the policies {', '.join(self.policies)}, not {sorted(unknown)}"
            )
        await self.leave(asked.raas)
        self._incarnations += 1
        self.raas[asked.raas] = OwnRaas(self._incarnations, asked.capacity, time.monotonic())
        await self.note()
        return self._incarnations

    def check_in(self, name: str, incarnation: int) -> OwnRaas:
        """Record a call of a RaaS; 404 if it must register (again)."""
        found = self.raas.get(name)
        if found is None or found.incarnation != incarnation:
            raise Refused(404, f"RaaS {name!r} is not registered here: register (again)")
        found.heard = time.monotonic()
        return found

    async def report(self, raas: OwnRaas, serving: dict[str, int], seen: dict[str, int]) -> None:
        """What it serves and has seen."""
        changed = raas.serving != serving
        raas.serving, raas.seen = serving, seen
        if changed:
            await self.note()

    async def lease(self, name: str, free: int, wait_s: float) -> list[messages.Task]:
        """Tasks for ``free`` episodes; waits for them, or for notices."""
        raas = self.raas[name]
        if not self._fits(free):
            try:
                async with asyncio.timeout(wait_s), self.changed:
                    await self.changed.wait_for(lambda: self._fits(free) or self._has_news(raas))
            except TimeoutError:
                return []
        given: list[messages.Task] = []
        while self._fits(free) and self.raas.get(name) is raas:
            each = self._queue.popleft()
            each.raas, each.attempts, each.named = name, each.attempts + 1, time.monotonic()
            self._leased[each.task.id] = each
            free -= each.task.group_size
            given.append(each.task)
        return given

    def _fits(self, free: int) -> bool:
        return bool(self._queue) and self._queue[0].task.group_size <= free

    def _has_news(self, raas: OwnRaas) -> bool:
        return self.stopping or bool(raas.lost) or bool(self._news(raas))

    def _news(self, raas: OwnRaas) -> list[messages.AnnouncementMessage]:
        return [e for e in self.announced.values() if e.version > raas.seen.get(e.policy, -1)]

    def notices(self, raas: OwnRaas) -> messages.Notices:
        """The contents of a reply."""
        lost, raas.lost = list(raas.lost.values()), {}
        return messages.Notices(announcements=self._news(raas), revoked=lost, stop=self.stopping)

    async def push(self, group: ReceivedGroup) -> None:
        """The group of a leased task; 409 if the RaaS does not hold it, 400 if it is not of it."""
        header = group.header
        each = self._leased.get(header.task)
        if each is None or each.raas != header.raas:
            raise Refused(409, f"RaaS {header.raas!r} does not hold task {header.task!r}")
        episodes = header.trajectories + header.rejected + header.late
        if header.prompt_id != each.task.prompt_id or episodes > each.task.group_size:
            raise Refused(400, f"the group is not one of task {header.task!r}")
        if unknown := {s.policy for s in header.sequences} - set(self.policies):
            raise Refused(400, f"the run has no policy {sorted(unknown)[0]!r}")
        del self._leased[header.task]
        await self._finish(each, self._convert(group, each.task.data))

    async def fail(self, asked: messages.FailTask) -> None:
        """A task failed: it is tried again, or its failure is its result."""
        each = self._leased.get(asked.task)
        if each is not None and each.raas == asked.raas:
            del self._leased[asked.task]
            await self._again(each, asked.error, asked.fatal)

    async def leave(self, name: str) -> None:
        """A RaaS is gone: its tasks go to others."""
        if self.raas.pop(name, None) is not None:
            for each in [each for each in self._leased.values() if each.raas == name]:
                del self._leased[each.task.id]
                await self._again(each, f"RaaS {name!r} is gone")
            await self.note()

    def renew(self, name: str, tasks: list[str]) -> None:
        """A RaaS still has these tasks."""
        for each in tasks:
            if (held := self._leased.get(each)) is not None and held.raas == name:
                held.named = time.monotonic()

    async def expire(self) -> None:
        """Give up RaaS that are silent, and leases that are not renewed."""
        now = time.monotonic()
        for name in [n for n, each in self.raas.items() if now - each.heard > self.lease_s]:
            await self.leave(name)
        for each in [e for e in self._leased.values() if now - e.named > self.lease_s]:
            self._revoke(each, "it was not renewed")
            await self._again(each, f"RaaS {each.raas!r} did not renew its lease")

    async def _again(self, each: Submitted, error: str, fatal: bool = False) -> None:
        each.raas = ""
        if fatal or each.attempts >= self._attempts:
            await self._finish(each, {"ok": False, "error": error})
        else:
            self._queue.appendleft(each)
            await self.note()

    async def _finish(self, each: Submitted, result: Any) -> None:
        self._results[each.lane].append({"task_id": each.number, "result": result})
        await self.note()

    def _revoke(self, each: Submitted, reason: str) -> None:
        self._leased.pop(each.task.id, None)
        if each.raas in self.raas:
            lost = messages.RevokedLease(task=each.task.id, reason=reason)
            self.raas[each.raas].lost[each.task.id] = lost


def check_data(data: Any) -> dict[str, Any]:
    """``data`` of a submission, if it is a dict with texts as keys; ValueError if not."""
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise ValueError("data must be a dict with texts as keys")
    return data
