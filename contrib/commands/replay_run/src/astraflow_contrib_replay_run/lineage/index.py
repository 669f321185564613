"""The groups, rows, updates and versions in a journal, by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import singledispatchmethod

from astraflow_runtime.dataflow.journal.entries import (
    Acknowledged,
    Announced,
    BatchRequested,
    Entry,
    Leased,
    PromptsConsumed,
    Pushed,
    RaasRegistration,
    Swapped,
    TrainerRegistration,
)

Row = tuple[str, int]
"""A policy, and the arrival of one of its rows."""


@dataclass(slots=True)
class PushedGroup:
    """A group that came in; ``leased_s`` and ``pushed_s``: seconds of the run. ``newest``: policy → newest version then."""

    entry: Pushed
    leased_s: float | None
    pushed_s: float
    newest: dict[str, int]


@dataclass(slots=True)
class Update:
    """Update ``step`` of a policy, counted from 1, of ``batch``, which updates version ``updates``. ``rows``: its own, then
    those that it ``borrowed``. ``made_s`` and ``version``, the newest published then, are ``None`` if it was not made."""

    policy: str
    step: int
    batch: str
    updates: int
    served_s: float
    rows: list[Row]
    borrowed: frozenset[Row]
    made_s: float | None = None
    version: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class PublishedVersion:
    """A published version: when, with which digest, and after how many updates of its policy."""

    announced_s: float
    digest: str
    size: int
    updates: int


@dataclass(slots=True)
class Raas:
    """A RaaS that registered."""

    host: str
    registered_s: float


class LineageIndex:
    """Listens to a journal. All ``offers`` of prompts that were refused: prompt → (seconds, by, reason)."""

    def __init__(self) -> None:
        self.groups: dict[str, PushedGroup] = {}
        self.of_row: dict[Row, tuple[str, int]] = {}
        """Row → its group's task and the index of its sequence there."""
        self.updates: dict[tuple[str, int], Update] = {}
        self.versions: dict[tuple[str, int], PublishedVersion] = {}
        self.admitted: dict[str, list[str]] = {}
        """Prompt → tasks."""
        self.refused: dict[str, list[tuple[float, str, str]]] = {}
        self.raas: dict[str, Raas] = {}
        self.swaps: list[tuple[float, Swapped]] = []
        self._leased: dict[str, float] = {}
        self._newest: dict[str, int] = {}
        self._steps: dict[str, int] = {}
        self._made: dict[str, int] = {}
        self._at = 0.0

    def on_entry(self, at_s: float, entry: Entry) -> None:
        """Take note of an entry."""
        self._at = at_s
        self._take(entry)

    def row_of(self, row: Row) -> tuple[PushedGroup, int] | None:
        """The group of a row and the index of its sequence there."""
        found = self.of_row.get(row)
        return None if found is None else (self.groups[found[0]], found[1])

    def rows_of(self, task: str) -> list[Row]:
        """The rows that a group became, policy by policy."""
        group = self.groups.get(task)
        if group is None:
            return []
        return [
            (judged.policy, judged.first + place)
            for judged in group.entry.judged
            for place in range(len(judged.indexes))
        ]

    @singledispatchmethod
    def _take(self, entry: Entry) -> None:
        """Entries that say nothing of these."""

    @_take.register
    def _(self, entry: PromptsConsumed) -> None:
        for turned in entry.turned:
            for prompt in () if turned.shadow else turned.prompts:
                self.refused.setdefault(prompt, []).append((self._at, turned.by, turned.reason))
        if entry.task:
            self.admitted.setdefault(entry.prompt, []).append(entry.task)

    @_take.register
    def _(self, entry: Leased) -> None:
        self._leased[entry.task] = self._at

    @_take.register
    def _(self, entry: Pushed) -> None:
        task = entry.header.task
        if entry.header.eval_set:
            return
        self.groups[task] = PushedGroup(
            entry, self._leased.pop(task, None), self._at, dict(self._newest)
        )
        if entry.refill:
            self.admitted.setdefault(entry.header.prompt_id, []).append(entry.refill)
        for judged in entry.judged:
            for place, index in enumerate(judged.indexes):
                self.of_row[judged.policy, judged.first + place] = (task, index)

    @_take.register
    def _(self, entry: BatchRequested) -> None:
        policy = entry.message.policy
        if not entry.batch:
            return
        step = int(entry.batch.rpartition("-")[2]) + 1
        self._steps[policy] = step
        borrowed = [(entry.source, arrival) for arrival in entry.borrowed]
        rows = [(policy, arrival) for arrival in entry.arrivals]
        self.updates.setdefault(
            (policy, step),
            Update(
                policy=policy,
                step=step,
                batch=entry.batch,
                updates=entry.message.version,
                served_s=self._at,
                rows=rows + borrowed,
                borrowed=frozenset(borrowed),
            ),
        )

    @_take.register
    def _(self, entry: Acknowledged) -> None:
        message = entry.message
        step = int(message.batch.rpartition("-")[2]) + 1
        self._made[message.policy] = step
        update = self.updates.get((message.policy, step))
        if update is not None and update.made_s is None:
            update.made_s, update.version = self._at, message.version
            update.metrics = dict(message.metrics)

    @_take.register
    def _(self, entry: TrainerRegistration) -> None:
        # The version that it publishes first has the weights of its newest checkpoint.
        policy, made = entry.message.policy, self._made.get(entry.message.policy, 0)
        self._made[policy] = max((u for u in entry.message.updates if u <= made), default=0)
        self._steps[policy] = self._made[policy]

    @_take.register
    def _(self, entry: Announced) -> None:
        message = entry.message
        step = self._steps.get(message.policy, 0)
        self._newest[message.policy] = message.version
        self.versions[message.policy, message.version] = PublishedVersion(
            self._at, message.digest, message.size, step
        )

    @_take.register
    def _(self, entry: RaasRegistration) -> None:
        self.raas[entry.message.raas] = Raas(entry.message.host, self._at)

    @_take.register
    def _(self, entry: Swapped) -> None:
        self.swaps.append((self._at, entry))
