"""A recording from the journal of a run, live or ended."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import singledispatchmethod
from pathlib import Path
from statistics import fmean, median
from typing import Any

from pydantic import ValidationError

from astraflow_contrib_simulate.recording import (
    RecordedGroup,
    RecordedPolicy,
    RecordedStep,
    Recording,
)
from astraflow_core.config.models import PolicyTable, RunConfig
from astraflow_core.errors import UserError
from astraflow_runtime.dataflow.journal.entries import (
    Acknowledged,
    Announced,
    AttemptFailed,
    BatchRequested,
    Entry,
    Leased,
    Overdue,
    Pushed,
    RaasGone,
    RaasLeft,
    RaasRegistration,
    TrainerRegistration,
)
from astraflow_runtime.dataflow.journal_reader import JournalReader
from astraflow_runtime.dataflow.lease_history import EndedLease, LeaseHistory

FEWEST_STEPS = 3
_TRAINING = "train-"


def read_run(directory: Path) -> Recording:
    """The recording of a run directory; :class:`UserError` if it has no journal or too little happened."""
    file = directory / "config.toml"
    if not file.exists():
        raise UserError(f"the run in {directory} cannot be read: {file} is missing")
    journal = JournalReader.of_run(directory)
    try:
        config = RunConfig.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
    except ValidationError as error:
        raise UserError(f"{file} is not of this version of astraflow-core: {error}") from error
    listener = _Listener(config)
    journal.feed(listener)
    return listener.recording(config, _refreshes(directory))


def _refreshes(directory: Path) -> dict[str, tuple[float, float]]:
    """Policy → seconds of a pull and of a swap, as the last step that knows them says."""
    found: dict[str, tuple[float, float]] = {}
    file = directory / "metrics.jsonl"
    for text in file.read_bytes().splitlines() if file.exists() else ():
        try:
            line: dict[str, Any] = json.loads(text)
        except ValueError:
            continue  # a damaged line, or the last one of a run that is being written
        if "refresh" in line and line["refresh"]["swaps"]:
            found[line["policy"]] = (line["refresh"]["pull_s"], line["refresh"]["swap_s"])
    return found


@dataclass
class _Trainer:
    """A policy's trainer while the journal is read."""

    last: tuple[float, float] | None = None
    served: list[int] = field(default_factory=list)
    version: int = 0
    newest: int = 0
    source: str = ""
    lent: list[int] = field(default_factory=list)
    lent_ages: list[int] = field(default_factory=list)
    steps: list[RecordedStep] = field(default_factory=list)
    fresh: list[int] = field(default_factory=list)
    borrowed: list[int] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)
    seen_lent: set[int] = field(default_factory=set)
    accepted: list[tuple[float, int]] = field(default_factory=list)
    sequences: list[float] = field(default_factory=list)
    size: int = 0


class _Listener:
    """Listens for what a recording holds. Groups that end without a result hold places too, and bring nothing."""

    def __init__(self, config: RunConfig) -> None:
        self.now = 0.0
        self._group_size = config.run.group_size
        self._leases = LeaseHistory()
        self._busy_at_start: dict[tuple[str, str], int] = {}
        self._groups: list[RecordedGroup] = []
        self._trainers = {policy: _Trainer() for policy in config.policies}
        self._min_versions: dict[tuple[str, int], int] = {}
        self._freed: dict[str, float] = {}
        self._gaps: list[float] = []
        self._present: set[str] = set()
        self._pool: list[tuple[float, int]] = []
        self._places: dict[str, int] = {}

    def on_entry(self, at_s: float, entry: Entry) -> None:
        """Take note of an entry."""
        self.now = at_s
        for ended in self._leases.take(at_s, entry):
            self._ended(ended, entry)
        self._on_entry(entry)

    @singledispatchmethod
    def _on_entry(self, entry: Entry) -> None:
        """Most kinds are ignored."""

    @_on_entry.register
    def _(self, entry: RaasRegistration) -> None:
        self._places[entry.message.raas] = entry.message.capacity
        self._present.add(entry.message.raas)
        self._pool.append((self.now, len(self._present)))

    @_on_entry.register
    def _(self, entry: RaasLeft) -> None:
        self._remove_raas(entry.message.raas)

    @_on_entry.register
    def _(self, entry: RaasGone) -> None:
        self._remove_raas(entry.raas)

    def _remove_raas(self, raas: str) -> None:
        self._present.discard(raas)
        self._pool.append((self.now, len(self._present)))

    @_on_entry.register
    def _(self, entry: Leased) -> None:
        if entry.raas in self._freed:
            self._gaps.append(self.now - self._freed.pop(entry.raas))
        self._busy_at_start[entry.task, entry.raas] = self._busy(entry.raas)

    def _busy(self, raas: str) -> int:
        """Places of a RaaS that are taken now."""
        held = sum(lease.raas == raas for lease in self._leases.all)
        return held * self._group_size

    @_on_entry.register
    def _(self, entry: Pushed) -> None:
        header = entry.header
        for policy, trainer in self._trainers.items() if entry.judged else ():
            shares = sum(sequence.policy == policy for sequence in header.sequences)
            trainer.sequences.append(shares / max(header.trajectories, 1))
        for judged in entry.judged:
            self._trainers[judged.policy].accepted.append((self.now, len(judged.indexes)))
            for arrival, index in enumerate(judged.indexes, judged.first):
                key = judged.policy, arrival
                self._min_versions[key] = header.sequences[index].min_version

    def _ended(self, ended: EndedLease, entry: Entry) -> None:
        """A lease ended by an entry: only a task's own shows how long a rollout takes, and of two leases of a task the one
        that ended it."""
        lease = ended.lease
        begin = self._busy_at_start.pop((lease.task, lease.raas))
        if ended.other or not isinstance(entry, (Overdue, AttemptFailed, Pushed)):
            return
        busy = self._busy(lease.raas)
        if busy + self._group_size > lease.capacity - self._group_size:  # no room for another
            self._freed[lease.raas] = self.now
        if lease.task.startswith(_TRAINING):
            judged = entry.judged if isinstance(entry, Pushed) else []
            group = RecordedGroup(
                seconds=self.now - lease.since_s,
                busy=(begin + busy + self._group_size) / 2,
                size=self._group_size,
                rows={j.policy: len(j.indexes) for j in judged if j.indexes},
            )
            self._groups.append(group)

    @_on_entry.register
    def _(self, entry: Announced) -> None:
        trainer = self._trainers[entry.message.policy]
        trainer.size, trainer.newest = entry.message.size, entry.message.version

    @_on_entry.register
    def _(self, entry: TrainerRegistration) -> None:
        self._trainers[entry.message.policy].last = None

    @_on_entry.register
    def _(self, entry: BatchRequested) -> None:
        if entry.batch:
            trainer = self._trainers[entry.message.policy]
            trainer.served, trainer.version = entry.arrivals, entry.message.version
            trainer.lent, trainer.source = entry.borrowed, entry.source or trainer.source
            trainer.lent_ages = [
                self._trainers[entry.source].newest - self._min_versions[entry.source, arrival]
                for arrival in entry.borrowed
                if arrival not in trainer.seen_lent
            ]

    @_on_entry.register
    def _(self, entry: Acknowledged) -> None:
        policy = entry.message.policy
        trainer = self._trainers[policy]
        new = [arrival for arrival in trainer.served if arrival not in trainer.seen]
        trainer.seen.update(new)
        trainer.seen_lent.update(trainer.lent)
        if trainer.last is not None and (new or trainer.lent_ages):
            at, waited = trainer.last
            waits = max(0.0, entry.waited_s - waited)
            own = [trainer.version - self._min_versions[policy, arrival] for arrival in new]
            ages = own + trainer.lent_ages
            busy = max(0.0, self.now - at - waits)
            step = RecordedStep(at_s=self.now, busy_s=busy, waited_s=waits, staleness=ages)
            trainer.steps.append(step)
            trainer.fresh.append(len(new))
            trainer.borrowed.append(len(trainer.lent_ages))
        trainer.last = self.now, entry.waited_s

    def recording(self, config: RunConfig, refreshes: dict[str, tuple[float, float]]) -> Recording:
        """What was read, if it is enough."""
        policies = {
            name: self._policy(name, table, refreshes.get(name, (0.0, 0.0)))
            for name, table in config.policies.items()
        }
        if not self._groups or any(len(p.steps) < FEWEST_STEPS for p in policies.values()):
            raise UserError(
                f"not enough data: each trainer needs {FEWEST_STEPS} updates after its first"
            )
        begins = min(p.steps[0].at_s - p.steps[0].busy_s for p in policies.values())
        ends = max(p.steps[-1].at_s for p in policies.values())
        return Recording(
            run=config.run.name,
            replicas=self._mean_pool(begins, ends),
            places=round(fmean(self._places.values()))
            if self._places
            else config.raas.max_concurrent_episodes,
            max_staleness=config.run.max_staleness,
            group_size=self._group_size,
            turnaround_s=self._turnaround_s(),
            groups=self._groups,
            policies=policies,
        )

    def _policy(
        self, name: str, table: PolicyTable, refresh: tuple[float, float]
    ) -> RecordedPolicy:
        trainer = self._trainers[name]
        steps = trainer.steps
        begins = steps[0].at_s - steps[0].busy_s - steps[0].waited_s if steps else 0.0
        ends = steps[-1].at_s if steps else 0.0
        return RecordedPolicy(
            batch_sequences=table.batch_sequences,
            publish_every=table.publish_every,
            ranks=table.trainer.ranks,
            per_trajectory=fmean(trainer.sequences) if trainer.sequences else 0.0,
            fresh=fmean(trainer.fresh) if trainer.fresh else float(table.batch_sequences),
            size=trainer.size,
            pull_s=refresh[0],
            swap_s=refresh[1],
            steps=steps,
            accepted=sum(rows for at, rows in trainer.accepted if begins < at <= ends),
            source=trainer.source,
            borrowed=fmean(trainer.borrowed) if trainer.borrowed else 0.0,
            most_borrowed=max(trainer.borrowed, default=0),
        )

    def _turnaround_s(self) -> float:
        """A longer gap than a tenth of a rollout is not work on the way but a lack of room for any."""
        longest = median(group.seconds for group in self._groups) / 10
        gaps = [gap for gap in self._gaps if gap <= longest]
        return median(gaps) if gaps else 0.0

    def _mean_pool(self, begins: float, ends: float) -> float:
        """RaaS that were there, averaged over the time of the steps."""
        total = 0.0
        for at, until, count in self._spans(ends):
            total += count * max(0.0, min(until, ends) - max(at, begins))
        return total / (ends - begins) if ends > begins else float(len(self._places))

    def _spans(self, ends: float) -> Iterator[tuple[float, float, int]]:
        following = [at for at, _ in self._pool[1:]] + [ends]
        for (at, count), until in zip(self._pool, following, strict=True):
            yield at, until, count
