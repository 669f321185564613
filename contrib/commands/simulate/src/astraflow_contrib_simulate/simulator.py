"""A run as a queue of events: leases under the staleness bound, rollouts, updates, versions on their way."""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count

from astraflow_contrib_simulate.load import rollout_s, slowdown
from astraflow_contrib_simulate.recording import RecordedGroup, RecordedPolicy, Recording
from astraflow_runtime.dataflow.fleet.raas import RaasRecord
from astraflow_runtime.dataflow.progress import Progress, RunState
from astraflow_runtime.dataflow.tasks.lease_refusals import lease_refusal

MOST_EVENTS = 2_000_000


@dataclass(frozen=True, slots=True)
class Setting:
    """What may be otherwise than in the recording. ``bandwidth``: bytes per second at which a RaaS fetches a
    version; ``None``: as recorded."""

    replicas: int
    max_staleness: int
    bandwidth: float | None = None


@dataclass(slots=True, eq=False)
class _Raas(RaasRecord):
    """A RaaS of which ``busy`` places have episodes."""

    busy: int = 0

    @property
    def free(self) -> int:
        return self.capacity - self.busy


@dataclass(slots=True)
class _Tasks:
    """Tasks under a lease, and policy → sequences expected of them. None waits in a queue: there are always prompts."""

    in_flight: dict[str, float]
    running: int = 0

    def first(self, raas: str = "") -> None:
        return None

    def count(self, tasks: int, expected: Mapping[str, float]) -> None:
        """That many more run, fewer if negative."""
        self.running += tasks
        for policy, sequences in expected.items():
            self.in_flight[policy] += tasks * sequences


@dataclass(slots=True)
class _Trainer:
    """A policy: its trainer, buffer and versions. ``rows``: the version that each was begun with; ``lent``: alike,
    of those of its source that wait to be borrowed. ``training`` rows of its own and ``borrowed`` ones; ``wanted``:
    fresh rows of its own that all batches so far would have had, as many as recorded on average."""

    policy: str
    facts: RecordedPolicy
    max_staleness: int
    rows: deque[int] = field(default_factory=deque)
    lent: deque[int] = field(default_factory=deque)
    sharing_underfilled: bool = False
    training: int = 0
    borrowed: int = 0
    wanted: float = 0.0
    version: int = 0
    updates: int = 0
    asked_at: float | None = 0.0
    waited_s: float = 0.0
    stale: int = 0
    accepted: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    staleness: list[Counter[int]] = field(default_factory=list)

    @property
    def shares(self) -> str:
        return self.facts.shares

    @property
    def batch_sequences(self) -> int:
        return self.facts.batch_sequences

    @property
    def limit(self) -> int:
        """The limit, as the dataflow computes it."""
        own = self.facts.batch_sequences
        if not (self.facts.shares or self.sharing_underfilled):
            own -= self.facts.most_borrowed
        return (self.max_staleness + 1) * own

    @property
    def pending(self) -> int:
        if self.facts.shares:
            return len(self.lent) + self.borrowed
        return len(self.rows) + self.training

    @property
    def starves(self) -> bool:
        return not (self.training or self.borrowed or self.rows_for_batch())

    def rows_for_batch(self) -> tuple[int, int] | None:
        """Borrowed rows and fresh ones of its own that the next batch would have; none if there are too few. Over
        many batches as many of its own are fresh as recorded on average."""
        facts = self.facts
        loan = min(facts.most_borrowed, len(self.lent))
        if facts.shares:
            return (loan, 0) if loan == facts.most_borrowed else None
        wanted = self.wanted + self.fresh_beside(loan)
        needed = max(1, round(wanted) - round(self.wanted))
        return (loan, needed) if len(self.rows) >= needed else None

    def fresh_beside(self, loan: int) -> float:
        """Of the rows that a batch does not borrow, the share that was fresh in the recording."""
        facts = self.facts
        own = facts.batch_sequences - facts.borrowed
        return facts.fresh * (facts.batch_sequences - loan) / own if own else 0.0


class Simulator:
    """Runs ``updates`` of each policy in a ``setting``. The dataflow's own :func:`lease_refusal` says who gets a task;
    as there, rows are served in the order of arrival; stale ones are dropped when the batch is cut; a batch needs fewer of its own
    rows by those that it borrows. Times are drawn from those recorded, with ``seed``. Evaluations, failures and starts take
    no time."""

    def __init__(self, recording: Recording, setting: Setting, updates: int, seed: int = 0) -> None:
        self._recording, self._setting, self._updates = recording, setting, updates
        self._random = random.Random(seed)
        self._slope = slowdown(recording.groups)
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self.group_size, self.max_staleness = recording.group_size, setting.max_staleness
        self.held_back = self.prompts_held_by = ""
        self.trainers = {
            name: _Trainer(name, facts, setting.max_staleness)
            for name, facts in recording.policies.items()
        }
        self.newest = dict.fromkeys(self.trainers, 0)
        self.train = _Tasks(dict.fromkeys(self.trainers, 0.0))
        self.expected = {
            name: recording.group_size * trainer.facts.per_trajectory
            for name, trainer in self.trainers.items()
        }
        self.progress = Progress(0.0)
        self.progress.move(RunState.RUNNING, "", 0.0)
        self._raas = [self._new_raas(number) for number in range(setting.replicas)]

    def _new_raas(self, number: int) -> _Raas:
        places, serving = self._recording.places, dict(self.newest)
        return _Raas(f"raas-{number}", 0, "", places, 0.0, {}, serving=serving, caught_up=True)

    def run(self) -> None:
        """Simulate the run to its last update."""
        self._lease()
        handled = 0
        while self._events and not all(self._done(t) for t in self.trainers.values()):
            self._now, _, act = heapq.heappop(self._events)
            act()
            handled += 1
            if handled > MOST_EVENTS:
                return

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self._now + seconds, next(self._order), act))

    def _done(self, trainer: _Trainer) -> bool:
        return trainer.updates >= self._updates

    def live_streams(self) -> list[_Trainer]:
        """Policies that need rows."""
        return [trainer for trainer in self.trainers.values() if not self._done(trainer)]

    # -- rollouts --------------------------------------------------------------------------------

    def _lease(self) -> None:
        """Fill one RaaS after the other, as the dataflow wakes them."""
        for raas in self._raas:
            if lease_refusal(self) is not None:
                return
            while lease_refusal(self, raas, raas.free) is None:
                self._begin(raas)

    def _begin(self, raas: _Raas) -> None:
        group = self._random.choice(self._recording.groups)
        raas.busy += self._recording.group_size
        self.train.count(1, self.expected)
        versions = dict(raas.serving)
        seconds = rollout_s(group, float(raas.busy), self._slope)
        self._after(seconds, lambda: self._push(raas, group, versions))

    def _push(self, raas: _Raas, group: RecordedGroup, versions: dict[str, int]) -> None:
        self.train.count(-1, self.expected)
        for name, trainer in self.trainers.items():
            rows = group.rows.get(name, 0)
            trainer.accepted += [self._now] * rows
            if not trainer.facts.shares:
                trainer.rows.extend([versions[name]] * rows)
            if source := trainer.facts.source:
                self._lend(trainer, [versions[source]] * group.rows.get(source, 0))
        self._after(self._recording.turnaround_s, lambda: self._free(raas))
        for trainer in self.trainers.values():
            self._serve(trainer)
        self._lease()

    def _free(self, raas: _Raas) -> None:
        raas.busy -= self._recording.group_size
        self._lease()

    # -- updates ---------------------------------------------------------------------------------

    def _lend(self, trainer: _Trainer, rows: list[int]) -> None:
        """The oldest beyond what may wait go."""
        trainer.lent.extend(rows)
        most = (self._setting.max_staleness + 1) * trainer.facts.batch_sequences
        while len(trainer.lent) > most:
            trainer.lent.popleft()

    def _serve(self, trainer: _Trainer) -> None:
        if trainer.asked_at is None or self._done(trainer):
            return
        facts, source = trainer.facts, self.trainers.get(trainer.facts.source)
        fresh = deque(v for v in trainer.rows if self._fits_still(trainer, v))
        trainer.stale += len(trainer.rows) - len(fresh)
        trainer.rows = fresh
        if source is not None:
            trainer.lent = deque(v for v in trainer.lent if self._fits_still(source, v))
            trainer.sharing_underfilled = len(trainer.lent) < facts.most_borrowed
        chosen = trainer.rows_for_batch()
        if chosen is None:
            return
        loan, needed = chosen
        ages = Counter(trainer.version - fresh.popleft() for _ in range(needed))
        if source is not None:
            ages.update(source.version - trainer.lent.pop() for _ in range(loan))
        trainer.staleness.append(ages)
        trainer.wanted += trainer.fresh_beside(loan)
        trainer.waits.append(self._now - trainer.asked_at)
        trainer.asked_at, trainer.training, trainer.borrowed = None, needed, loan
        busy_s = self._random.choice(facts.steps).busy_s
        self._after(busy_s, lambda: self._updated(trainer))

    def _fits_still(self, sampled_by: _Trainer, version: int) -> bool:
        return sampled_by.version - version <= self._setting.max_staleness

    def _updated(self, trainer: _Trainer) -> None:
        trainer.updates += 1
        trainer.training = trainer.borrowed = 0
        trainer.ends.append(self._now)
        if trainer.updates % trainer.facts.publish_every == 0:
            trainer.version = self.newest[trainer.policy] = trainer.version + 1
            self._publish(trainer, trainer.version)
        trainer.asked_at = self._now
        self._serve(trainer)
        self._lease()

    def _publish(self, trainer: _Trainer, version: int) -> None:
        for raas in self._raas:
            self._after(
                self._refresh_s(trainer.facts),
                lambda raas=raas: self._refreshed(raas, trainer.policy, version),  # type: ignore[misc]
            )

    def _refresh_s(self, facts: RecordedPolicy) -> float:
        if self._setting.bandwidth is None:
            return facts.pull_s + facts.swap_s
        return facts.size / self._setting.bandwidth + facts.swap_s

    def _refreshed(self, raas: _Raas, policy: str, version: int) -> None:
        raas.serving[policy] = max(raas.serving[policy], version)
        self._lease()
