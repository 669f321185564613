"""A run as a queue of events: leases under the staleness bound, rollouts, updates, versions on their way."""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from astraflow_core.simulation.load import rollout_s, slowdown
from astraflow_core.simulation.recording import Group, Policy, Recording

_ROUNDING = 1e-6
MOST_EVENTS = 2_000_000


@dataclass(frozen=True, slots=True)
class Setting:
    """What may be otherwise than in the recording. ``bandwidth``: bytes per second at which a RaaS fetches a
    version; ``None``: as recorded."""

    replicas: int
    max_staleness: int
    bandwidth: float | None = None


@dataclass(slots=True)
class _Raas:
    number: int
    serving: dict[str, int]
    busy: int = 0


@dataclass(slots=True)
class _Trainer:
    """A policy: its trainer, buffer and versions. ``rows``: the version that each was begun with; ``lent``: alike,
    of those of its source that wait to be borrowed. ``training`` rows of its own and ``borrowed`` ones; ``wanted``:
    fresh rows of its own that all batches so far would have had, as many as recorded on average."""

    name: str
    facts: Policy
    rows: deque[int] = field(default_factory=deque)
    lent: deque[int] = field(default_factory=deque)
    lent_too_little: bool = False
    in_flight: float = 0.0
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


class Simulator:
    """Runs ``updates`` of each policy in a ``setting``. The rules are those of the dataflow: a task is leased if
    what is under way stays within (max_staleness + 1) batches, less one for each version that its RaaS is behind;
    rows are served in the order of arrival; stale ones are dropped when the batch is cut; what a batch borrows it
    needs not of its own. Times are drawn from those recorded, with ``seed``. Evaluations, failures and starts take
    no time."""

    def __init__(self, recording: Recording, setting: Setting, updates: int, seed: int = 0) -> None:
        self._recording, self._setting, self._updates = recording, setting, updates
        self._random = random.Random(seed)
        self._slope = slowdown(recording.groups)
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self.trainers = {name: _Trainer(name, facts) for name, facts in recording.policies.items()}
        first = dict.fromkeys(self.trainers, 0)
        self._raas = deque(_Raas(number, dict(first)) for number in range(setting.replicas))

    def run(self) -> None:
        """To the last update."""
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

    def _live(self) -> list[_Trainer]:
        return [trainer for trainer in self.trainers.values() if not self._done(trainer)]

    # -- rollouts --------------------------------------------------------------------------------

    def _lease(self) -> None:
        """Fill one RaaS after the other, as the dataflow wakes them."""
        for _ in range(len(self._raas)):
            raas = self._raas[0]
            while self._fits(raas):
                self._begin(raas)
            self._raas.rotate(-1)

    def _fits(self, raas: _Raas) -> bool:
        size, places = self._recording.group_size, self._recording.places
        behind = max(t.version - raas.serving[name] for name, t in self.trainers.items())
        if (raas.busy + size > places and raas.busy) or behind > self._setting.max_staleness:
            return False
        live = self._live()
        names = {trainer.name for trainer in live}
        counted = [trainer for trainer in live if trainer.facts.shares not in names]
        return bool(counted) and (
            all(self._has_room(trainer, raas) for trainer in counted) or self._all_starve(counted)
        )

    def _has_room(self, trainer: _Trainer, raas: _Raas) -> bool:
        facts, bound = trainer.facts, self._setting.max_staleness
        sampled_by = self.trainers[facts.shares or trainer.name]
        waiting, training, own = len(trainer.rows), trainer.training, facts.batch_sequences
        if facts.shares:
            waiting, training = len(trainer.lent), trainer.borrowed
        elif not trainer.lent_too_little:
            own -= facts.most_borrowed
        behind = sampled_by.version - raas.serving[sampled_by.name]
        limit = (bound + 1) * own - behind * facts.batch_sequences
        task = self._recording.group_size * sampled_by.facts.per_trajectory
        return sampled_by.in_flight + waiting + training + task <= limit + _ROUNDING

    def _all_starve(self, live: list[_Trainer]) -> bool:
        """A group may bring more than is left to fill: if nothing runs, one is let through."""
        idle = all(raas.busy == 0 for raas in self._raas)
        return idle and all(
            not (trainer.training or trainer.borrowed or self._rows_for(trainer))
            for trainer in live
        )

    def _begin(self, raas: _Raas) -> None:
        group = self._random.choice(self._recording.groups)
        raas.busy += self._recording.group_size
        expected = {
            name: self._recording.group_size * trainer.facts.per_trajectory
            for name, trainer in self.trainers.items()
        }
        for name, sequences in expected.items():
            self.trainers[name].in_flight += sequences
        versions = dict(raas.serving)
        seconds = rollout_s(group, float(raas.busy), self._slope)
        self._after(seconds, lambda: self._push(raas, group, versions, expected))

    def _push(
        self, raas: _Raas, group: Group, versions: dict[str, int], expected: dict[str, float]
    ) -> None:
        for name, trainer in self.trainers.items():
            trainer.in_flight -= expected[name]
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

    def _rows_for(self, trainer: _Trainer) -> tuple[int, int] | None:
        """Borrowed rows and fresh ones of its own that the next batch would have; none if there are too few. Over
        many batches as many of its own are fresh as recorded on average."""
        facts = trainer.facts
        loan = min(facts.most_borrowed, len(trainer.lent))
        if facts.shares:
            return (loan, 0) if loan == facts.most_borrowed else None
        wanted = trainer.wanted + self._fresh(facts, loan)
        needed = max(1, round(wanted) - round(trainer.wanted))
        return (loan, needed) if len(trainer.rows) >= needed else None

    @staticmethod
    def _fresh(facts: Policy, loan: int) -> float:
        """Of the rows that a batch does not borrow, the share that was fresh in the recording."""
        own = facts.batch_sequences - facts.borrowed
        return facts.fresh * (facts.batch_sequences - loan) / own if own else 0.0

    def _serve(self, trainer: _Trainer) -> None:
        if trainer.asked_at is None or self._done(trainer):
            return
        facts, source = trainer.facts, self.trainers.get(trainer.facts.source)
        fresh = deque(v for v in trainer.rows if self._fits_still(trainer, v))
        trainer.stale += len(trainer.rows) - len(fresh)
        trainer.rows = fresh
        if source is not None:
            trainer.lent = deque(v for v in trainer.lent if self._fits_still(source, v))
            trainer.lent_too_little = len(trainer.lent) < facts.most_borrowed
        chosen = self._rows_for(trainer)
        if chosen is None:
            return
        loan, needed = chosen
        ages = Counter(trainer.version - fresh.popleft() for _ in range(needed))
        if source is not None:
            ages.update(source.version - trainer.lent.pop() for _ in range(loan))
        trainer.staleness.append(ages)
        trainer.wanted += self._fresh(facts, loan)
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
            trainer.version += 1
            self._publish(trainer, trainer.version)
        trainer.asked_at = self._now
        self._serve(trainer)
        self._lease()

    def _publish(self, trainer: _Trainer, version: int) -> None:
        for raas in self._raas:
            self._after(
                self._refresh_s(trainer.facts),
                lambda raas=raas: self._refreshed(raas, trainer.name, version),  # type: ignore[misc]
            )

    def _refresh_s(self, facts: Policy) -> float:
        if self._setting.bandwidth is None:
            return facts.pull_s + facts.swap_s
        return facts.size / self._setting.bandwidth + facts.swap_s

    def _refreshed(self, raas: _Raas, policy: str, version: int) -> None:
        raas.serving[policy] = max(raas.serving[policy], version)
        self._lease()
