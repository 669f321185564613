"""Evaluations: scheduled for certain versions, run on exactly those, one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from astraflow_core.protocols.prompt_source import PromptSource
from astraflow_core.types import Prompt
from astraflow_runtime.dataflow.fleet.raas import Fleet, RaasRecord
from astraflow_runtime.dataflow.tasks.queue import TaskRecord, TaskTable
from astraflow_runtime.dataflow.tasks.scores import SetScore, score_prompt
from astraflow_wire.groups import GroupHeader


@dataclass(slots=True)
class Evaluation:
    """One evaluation of ``versions``; ``version`` is the smallest of them. ``host`` is the RaaS
    that keeps these versions until the evaluation ends.
    """

    versions: dict[str, int]
    due_at: float
    scores: dict[str, SetScore] = field(default_factory=dict)
    host: str = ""
    started_at: float | None = None

    @property
    def version(self) -> int:
        """The version of the slowest policy."""
        return min(self.versions.values())


class Evaluations:
    """``sets``: name → prompts. ``tasks`` is the table of evaluation tasks. ``history`` has one entry per
    finished evaluation."""

    def __init__(
        self,
        sets: Mapping[str, PromptSource],
        tasks: TaskTable,
        *,
        every: int,
        samples: int,
        pass_threshold: float,
        policies: Sequence[str],
    ) -> None:
        self._sets, self.tasks = dict(sets), tasks
        self._every, self._samples, self._pass_threshold = every, samples, pass_threshold
        self._policies = tuple(policies)
        self._passed = -1
        self._evaluated: dict[str, int] = {}
        self.pending: deque[Evaluation] = deque()
        self.active: Evaluation | None = None
        self.history: list[dict[str, Any]] = []

    @property
    def idle(self) -> bool:
        """Whether no evaluation runs or waits."""
        return self.active is None and not self.pending

    @property
    def all_waiting(self) -> list[Evaluation]:
        """The running evaluation and the waiting ones."""
        return ([self.active] if self.active else []) + list(self.pending)

    def prompt(self, name: str, index: int) -> Prompt:
        """A prompt of a set."""
        return self._sets[name][index]

    def versions_announced(self, newest: Mapping[str, int], now: float) -> bool:
        """Record that every policy has a version. Schedules an evaluation for the first such vector
        and whenever the slowest policy reaches or passes a multiple of ``every``.
        """
        slowest = min(newest.values())
        first = self._passed < 0
        due = first or slowest // self._every > self._passed // self._every
        self._passed = max(self._passed, slowest)
        return due and self.require(newest, now)

    def require(self, newest: Mapping[str, int], now: float) -> bool:
        """Schedule an evaluation of these versions, unless it was the last one scheduled."""
        if not self._sets or dict(newest) == self._evaluated:
            return False
        self._evaluated = dict(newest)
        self.pending.append(Evaluation(dict(newest), now))
        return True

    def start_next(self, now: float) -> bool:
        """Start the next evaluation if none runs; returns whether it did."""
        if self.active is not None or not self.pending:
            return False
        self.active = self.pending.popleft()
        self.active.started_at = now
        self._queue(self.active)
        return True

    def host(self, fleet: Fleet, load: Callable[[str], int]) -> bool:
        """Assign a live host to the running evaluation: a RaaS that serves the versions, else one
        that is not past them, and the least loaded of these (``load``: leased tasks of a RaaS).
        Returns whether the host changed.
        """
        if self.active is None:
            return False
        host = fleet.get(self.active.host)
        if host is not None and host.health in ("alive", "suspect") and not host.set_aside:
            return False
        live = [record for record in fleet.live() if record.serving and record.stays]
        if not live or any(record.unconfirmed for record in fleet.present()):
            return False
        versions = self.active.versions
        best = min(
            live,
            key=lambda r: (
                not r.serves(versions),
                r.is_past(versions),
                load(r.name),
                r.name,
            ),
        )
        self.active.host = best.name
        return True

    def is_unservable(self, fleet: Fleet) -> bool:
        """Whether no RaaS serves, or can still serve, the versions of the running evaluation."""
        if self.active is None or not self.tasks.queued:
            return False
        versions = self.active.versions
        usable = [record for record in fleet.present() if not record.set_aside]
        return not any(record.unconfirmed or record.serves(versions) for record in usable)

    def pins(self, raas: str) -> dict[str, int]:
        """The versions to which a RaaS is pinned: the host until the end, others while they have
        leases.
        """
        if self.active and (self.active.host == raas or self.tasks.held_by(raas)):
            return self.active.versions
        return {}

    def may_lease(self, record: RaasRecord, newest: Mapping[str, int]) -> bool:
        """Whether the RaaS may take a task of the running evaluation: it serves exactly these
        versions, and is the host or serves them anyway.
        """
        active = self.active
        if active is None or not self.tasks.queued or not record.serves(active.versions):
            return False
        return record.name == active.host or active.versions == dict(newest)

    def finish(self, task: TaskRecord, header: GroupHeader) -> None:
        """A task came back."""
        self.tasks.end(task, "accepted")
        assert self.active is not None
        scores = score_prompt(header, self._samples, self._pass_threshold)
        self.active.scores[task.eval_set].add(scores, self._policies)

    def fail(self, task: TaskRecord, error: str) -> None:
        """A task was set aside (its record has ended already)."""
        assert self.active is not None
        self.active.scores[task.eval_set].add_failure(f"{error} (prompt {task.prompt.id})")

    def conclude(self, now: float) -> dict[str, Any] | None:
        """The entry of the running evaluation if all its tasks have ended."""
        active = self.active
        if active is None or self.tasks.live:
            return None
        sets = {name: score.result() for name, score in active.scores.items()}
        entry = {
            "version": active.version,
            "versions": active.versions,
            "sets": sets,
            "seconds": now - (active.started_at or now),
        }
        self.history.append(entry)
        self.active = None
        return entry

    @property
    def best(self) -> dict[str, Any] | None:
        """``version``, ``versions`` and mean ``avg`` of the best evaluation, the first of equals."""
        return self._best(lambda versions: True)

    def _best(self, eligible: Callable[[Mapping[str, int]], bool]) -> dict[str, Any] | None:
        found = None
        for entry in self.history:
            averages = [one["avg"] for one in entry["sets"].values() if one["avg"] is not None]
            if not averages or not eligible(entry["versions"]):
                continue
            mean = sum(averages) / len(averages)
            if found is None or mean > found["avg"]:
                found = {"version": entry["version"], "versions": entry["versions"], "avg": mean}
        return found

    def best_available(
        self, available: Callable[[Mapping[str, int]], bool]
    ) -> Mapping[str, int] | None:
        """The versions of the best evaluation whose weights are still available."""
        best = self._best(available)
        return None if best is None else best["versions"]

    def give_up(self, reason: str) -> None:
        """Fail the queued tasks of the running evaluation."""
        while (task := self.tasks.first()) is not None:
            self.tasks.end(task, "failed")
            self.fail(task, reason)

    def needed_versions(
        self, policy: str, available: Callable[[Mapping[str, int]], bool]
    ) -> list[int]:
        """Versions of a policy that waiting or running evaluations need, and the best one that is ``available``."""
        versions = [evaluation.versions[policy] for evaluation in self.all_waiting]
        if (best := self.best_available(available)) is not None:
            versions.append(best[policy])
        return versions

    def _queue(self, evaluation: Evaluation) -> None:
        for name, source in self._sets.items():
            evaluation.scores[name] = SetScore(self._samples)
            for index in range(len(source)):
                self.tasks.add(source[index], self._samples, name, evaluation.versions, index)
