"""Tasks and their leases: queued → leased → finished, failed or set aside."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from astraflow_core.types import Prompt
from astraflow_runtime.dataflow.tasks.ended import EndedTasks, Outcome
from astraflow_runtime.dataflow.tasks.partial_groups import PartialGroup
from astraflow_wire.messages import RevokedLease

KEPT_ERRORS = 32
MAX_DIGITS = 18
"""The most digits in the number of a task: a RaaS may send any string."""


@dataclass(slots=True)
class Lease:
    """``raas`` works on the task until ``expires`` unless it renews, and until ``limit`` at most. ``newest``: policy →
    newest version when it was leased."""

    raas: str
    since: float
    expires: float
    limit: float
    newest: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class TaskRecord:
    """One group to roll out. ``attempts`` counts leases that ended without a result by a fault of
    the task or its RaaS; ``sequences`` is policy → sequences expected when it was leased.
    ``parts``: the parts of the group so far. ``second``: another RaaS works on it as well, and the first
    result counts. ``position``: of its prompt, at the cursor or in the evaluation set. ``failed_on``: RaaS on which it
    failed lately → time until which others get it first (:mod:`astraflow_runtime.dataflow.tasks.elsewhere`).
    """

    id: str
    prompt: Prompt
    group_size: int
    eval_set: str = ""
    pinned: Mapping[str, int] = field(default_factory=dict)
    attempts: int = 0
    last_error: str = ""
    lease: Lease | None = None
    second: Lease | None = None
    sequences: Mapping[str, float] = field(default_factory=dict)
    parts: tuple[PartialGroup, ...] = ()
    position: int = 0
    failed_on: dict[str, float] = field(default_factory=dict)

    @property
    def missing(self) -> int:
        """The number of trajectories to roll out."""
        if not self.parts:
            return self.group_size
        return self.group_size - sum(part.group.header.trajectories for part in self.parts)

    @property
    def leases(self) -> list[Lease]:
        """The leases that it is under: none, one or two."""
        return [lease for lease in (self.lease, self.second) if lease is not None]

    def lease_of(self, raas: str) -> Lease | None:
        """The lease by which ``raas`` works on it."""
        for lease in (self.lease, self.second):
            if lease is not None and lease.raas == raas:
                return lease
        return None


def number_in(name: str) -> int:
    """The number in the name of a task, unique among those of its table."""
    return int(name.rpartition("-")[2])


class TaskTable:
    """All tasks of one kind (``prefix``: ``"train"`` or ``"eval"``) with their queue and leases.
    ``on_ended`` is called with the prompt and the outcome of each that ended."""

    def __init__(
        self,
        prefix: str,
        lease_s: float,
        deadline_s: float,
        attempts: int,
        on_ended: Callable[[Prompt, Outcome], None] | None = None,
    ) -> None:
        self._on_ended = on_ended
        self._prefix, self._lease_s = prefix, lease_s
        self._deadline_s, self._max_attempts = deadline_s, attempts
        self._next = 0
        self._live: dict[str, TaskRecord] = {}
        self._queue: deque[TaskRecord] = deque()
        self._held: dict[str, set[str]] = {}
        self.in_flight: dict[str, float] = {}
        self._leased = 0
        self.twice: dict[str, TaskRecord] = {}
        """Tasks that two RaaS work on now, by name."""
        self.leased_again = self.second_won = 0
        self._ended = EndedTasks()
        self._why_revoked: dict[str, str] = {}
        self.outcomes: Counter[str] = Counter()
        self.set_aside: list[dict[str, str]] = []
        self.duplicates = 0
        self.late = 0

    @property
    def admitted(self) -> int:
        """The number of groups created; tasks for the rest of a group do not count."""
        return self._next - self.outcomes["refilled"]

    @property
    def queued(self) -> int:
        """Tasks that wait for a RaaS."""
        return len(self._queue)

    @property
    def running(self) -> int:
        """The number of leased tasks."""
        return self._leased

    @property
    def live(self) -> int:
        """Tasks that have not ended."""
        return len(self._live)

    @property
    def prompts(self) -> list[Prompt]:
        """Prompts of the tasks that have not ended, in order of admission."""
        return [task.prompt for task in self._live.values()]

    @property
    def parts(self) -> list[PartialGroup]:
        """The parts of groups that are being refilled."""
        return [part for task in self._live.values() for part in task.parts]

    def add(
        self,
        prompt: Prompt,
        group_size: int,
        eval_set: str = "",
        pinned: Mapping[str, int] | None = None,
        position: int = 0,
    ) -> TaskRecord:
        """A new task at the end of the queue, for the prompt at ``position``."""
        task = TaskRecord(
            f"{self._prefix}-{self._next}",
            prompt,
            group_size,
            eval_set,
            pinned or {},
            position=position,
        )
        self._next += 1
        self._live[task.id] = task
        self._queue.append(task)
        return task

    def first(self, raas: str = "") -> TaskRecord | None:
        """The task that is leased next, to ``raas`` if one is named."""
        for task in self._queue:
            if raas not in task.failed_on:
                return task
        return None

    @property
    def kept_from_some(self) -> list[TaskRecord]:
        """Queued tasks that some RaaS does not get for now."""
        return [task for task in self._queue if task.failed_on]

    def lease(
        self,
        raas: str,
        capacity: int,
        now: float,
        sequences: Mapping[str, float] | None = None,
        newest: Mapping[str, int] | None = None,
        name: str = "",
    ) -> TaskRecord:
        """Lease the first task of the queue that ``raas`` may have, or that of a ``name``. ``capacity``: episodes that the RaaS runs at once;
        ``sequences``: policy → sequences expected of it, added to :attr:`in_flight` while it runs;
        ``newest``: policy → its newest version."""
        task = self._live[name] if name else self.first(raas)
        assert task is not None, f"no task is queued for {raas}"
        self._queue.remove(task)
        task.lease = self._new_lease(task, raas, capacity, now, newest or {})
        self._leased += 1
        task.sequences = dict(sequences or {})
        for policy, count in task.sequences.items():
            self.in_flight[policy] = self.in_flight.get(policy, 0.0) + count
        return task

    def lease_again(
        self,
        task: TaskRecord,
        raas: str,
        capacity: int,
        now: float,
        newest: Mapping[str, int] | None = None,
    ) -> None:
        """Lease a leased task to another RaaS as well. Its sequences are in flight once, since one result counts."""
        assert task.lease is not None and task.second is None and task.lease.raas != raas
        task.second = self._new_lease(task, raas, capacity, now, newest or {})
        self.twice[task.id] = task
        self.leased_again += 1

    def _new_lease(
        self, task: TaskRecord, raas: str, capacity: int, now: float, newest: Mapping[str, int]
    ) -> Lease:
        rounds = math.ceil(task.missing / max(capacity, 1))
        limit = now + self._deadline_s * rounds + self._lease_s
        self._held.setdefault(raas, set()).add(task.id)
        return Lease(raas, now, now + self._lease_s, limit, dict(newest))

    def renew(self, raas: str, named: list[str], now: float) -> list[RevokedLease]:
        """Extend the leases of ``named`` tasks; returns those that ``raas`` does not hold (any longer)."""
        revoked = []
        for name in named:
            task = self._live.get(name)
            lease = task.lease_of(raas) if task is not None else None
            if lease is None:
                revoked.append(RevokedLease(task=name, reason=self.why_not_held(name, raas)))
            else:
                lease.expires = now + self._lease_s
        return revoked

    def owns(self, name: str) -> bool:
        """Whether the name belongs to this table."""
        return self._number(name) is not None

    def _number(self, name: str) -> int | None:
        """The number in the name of a task of this table, written as :meth:`add` writes it."""
        prefix, _, digits = name.partition("-")
        if prefix != self._prefix or len(digits) > MAX_DIGITS or not digits.isdecimal():
            return None
        number = int(digits)
        return number if number < self._next and digits == str(number) else None

    def outcome(self, name: str) -> Outcome | None:
        """How a task ended; ``None`` while it has not."""
        return self._ended.outcome(self._number(name))

    def ended_by(self, name: str) -> str:
        """The RaaS that held a task when it ended; empty if none did or it has not."""
        return self._ended.raas(self._number(name))

    def get(self, name: str) -> TaskRecord | None:
        """A task that has not ended."""
        return self._live.get(name)

    def held_by(self, raas: str) -> set[str]:
        """Ids of the tasks that ``raas`` holds."""
        return self._held.get(raas, set())

    def tasks_of(self, raas: str) -> list[TaskRecord]:
        """The tasks that ``raas`` holds, by name."""
        return [self._live[name] for name in sorted(self.held_by(raas))]

    def leased(self) -> list[TaskRecord]:
        """All leased tasks."""
        return [task for task in self._live.values() if task.lease is not None]

    def why_not_held(self, name: str, raas: str) -> str:
        """Why ``raas`` does not hold the task ``name``."""
        if not self.owns(name):
            return f"there is no task {name!r} in this run"
        if outcome := self.outcome(name):
            return f"the task has ended: {outcome.replace('_', ' ')}"
        task = self._live[name]
        reason = self._why_revoked.get(name, "its lease expired")
        if task.lease is not None:
            return f"{reason}; {task.lease.raas!r} now works on it"
        return f"{reason}; it waits in the queue"

    def end(self, task: TaskRecord, outcome: Outcome) -> None:
        """The task is done, for good."""
        self._close(task, outcome)
        if self._on_ended is not None:
            self._on_ended(task.prompt, outcome)

    def refill(self, task: TaskRecord, part: PartialGroup) -> TaskRecord:
        """End a task that produced ``part`` of its group; the rest becomes a separate task,
        the next to be leased. It counts as an attempt.
        """
        self._close(task, "refilled")
        rest = TaskRecord(
            f"{self._prefix}-{self._next}",
            task.prompt,
            task.group_size,
            attempts=task.attempts + 1,
            last_error=task.last_error,
            parts=(*task.parts, part),
            position=task.position,
        )
        self._next += 1
        self._live[rest.id] = rest
        self._queue.appendleft(rest)
        return rest

    def decide(self, task: TaskRecord, raas: str) -> None:
        """The end of the task is decided by what ``raas`` says: another lease of it ends."""
        if task.second is not None:
            self.second_won += task.second.raas == raas
            for lease in task.leases:
                if lease.raas != raas:
                    self._end_one(task, lease)

    def _close(self, task: TaskRecord, outcome: Outcome) -> None:
        holder = task.lease.raas if task.lease is not None else ""
        if task.lease is None:
            self._queue.remove(task)
        self._unlease(task)
        del self._live[task.id]
        self._why_revoked.pop(task.id, None)
        self._ended.add(number_in(task.id), outcome, holder)
        self.outcomes[outcome] += 1

    def give_back(
        self, task: TaskRecord, reason: str, *, blame: bool, raas: str = ""
    ) -> Outcome | None:
        """End the lease of ``raas`` (empty: of all) without a result. With ``blame`` it counts as an attempt, and the last
        one sets the task aside; else the task returns to the head of the queue. Neither happens while another RaaS
        works on it."""
        lease = task.lease_of(raas)
        if task.second is not None and lease is not None:
            self._end_one(task, lease)
            self._why_revoked[task.id] = reason
            return None
        if blame:
            task.attempts += 1
            task.last_error = reason
        if task.attempts >= self._max_attempts:
            self.end(task, "set_aside")
            if len(self.set_aside) < KEPT_ERRORS:
                self.set_aside.append({"task": task.id, "prompt": task.prompt.id, "error": reason})
            return "set_aside"
        self._unlease(task)
        self._why_revoked[task.id] = reason
        self._queue.appendleft(task)
        return None

    def extend_all(self, now: float) -> None:
        """Give every lease its full time: for a while no RaaS could renew."""
        for task in self.leased():
            for lease in task.leases:
                lease.expires = now + self._lease_s

    def overdue(self, now: float) -> list[tuple[TaskRecord, str, str]]:
        """Leases that have expired: the task, the RaaS and the reason."""
        found = []
        for task in self._live.values():
            for lease in (task.lease, task.second):
                if lease is None or (now < lease.expires and now < lease.limit):
                    continue
                if now >= lease.expires:
                    found.append((task, lease.raas, f"{lease.raas!r} did not renew its lease"))
                else:
                    held = now - lease.since
                    why = f"{lease.raas!r} returned no result after {held:.0f} s"
                    found.append((task, lease.raas, why))
        return found

    def _end_one(self, task: TaskRecord, lease: Lease) -> None:
        """End one of the two leases of a task; the other is its lease from now on."""
        if lease is task.lease:
            task.lease = task.second
        task.second = None
        del self.twice[task.id]
        self._release(task, lease)

    def _release(self, task: TaskRecord, lease: Lease) -> None:
        held = self._held[lease.raas]
        held.discard(task.id)
        if not held:
            del self._held[lease.raas]

    def _unlease(self, task: TaskRecord) -> None:
        if task.lease is not None:
            for lease in task.leases:
                self._release(task, lease)
            task.lease = task.second = None
            self.twice.pop(task.id, None)
            for policy, count in task.sequences.items():
                self.in_flight[policy] -= count
            task.sequences = {}
            self._leased -= 1
            if self.running == 0:
                self.in_flight.clear()
