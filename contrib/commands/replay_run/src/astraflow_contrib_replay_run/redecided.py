"""Batches of the recorded groups under other data policies.

Groups come in when they did and versions are those of the run, so that staleness is what it was. Each time when the run
had a batch for a policy, the data policies of the replay are asked for one; if they have too few rows, it is made as soon as
there are enough.
"""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np

from astraflow_contrib_replay_run.batches import OriginalStep, RecordedBatches
from astraflow_contrib_replay_run.recorded_run import RecordedRun
from astraflow_runtime.dataflow.journal.entries import (
    Acknowledged,
    AttemptFailed,
    BatchRequested,
    Entry,
    EvaluationGivenUp,
    Evicted,
    Leased,
    Overdue,
    PromptsConsumed,
    Pushed,
    Released,
    Swapped,
    TrainerRegistration,
)
from astraflow_runtime.dataflow.rows.rows import LoggedGroup
from astraflow_wire.messages import AcknowledgeBatch, NextBatch

_SKIPPED = (Released, Evicted, EvaluationGivenUp, Swapped)
"""What follows from the decisions of the run."""


class RedecidedBatches(RecordedBatches):
    """As :class:`RecordedBatches`, with the data policies of the replay's configuration. ``unrecorded``: groups that the run
    rejected, whose rows it has not kept: they are rejected here too."""

    def __init__(self, recorded: RecordedRun, until: int | None = None) -> None:
        super().__init__(recorded, until)
        self.unrecorded = 0
        self._owed: Counter[str] = Counter()
        self._seen: set[str] = set()
        self._registered: set[str] = set()
        self._run_made: Counter[str] = Counter()

    def acknowledge(self, message: AcknowledgeBatch) -> None:
        """A trainer has made an update."""
        newest = self.state.versions.newest[message.policy]
        self.flow.training.acknowledge(msgspec.structs.replace(message, version=newest))
        stream = self.state.streams[message.policy]
        stream.release(stream.updates)
        super().acknowledge(message)

    def read_rest(self) -> None:
        """What the run did with an update was read before its batch was made here."""

    def _waits(self, entry: Entry) -> bool:
        return False

    def _apply(self, at_s: float, entry: Entry) -> None:
        self._note(entry)
        if isinstance(entry, PromptsConsumed):
            self._walk(entry)
        elif isinstance(entry, Pushed):
            self._push(at_s, entry)
        elif isinstance(entry, BatchRequested):
            self._request(entry)
        elif isinstance(entry, Acknowledged):
            self._compare(entry)
        elif not self._is_void(entry):
            self._applying.on_entry(at_s, entry)
        for policy in self._policies:
            self._cut(policy)

    def _is_void(self, entry: Entry) -> bool:
        """Whether an entry records an evaluation, a decision of the run's data policies, or a trainer that came back."""
        if isinstance(entry, _SKIPPED):
            return True
        if isinstance(entry, TrainerRegistration):
            known = entry.message.policy in self._registered
            self._registered.add(entry.message.policy)
            return known
        if isinstance(entry, Leased | Overdue):
            return not self.state.train.owns(entry.task)
        return isinstance(entry, AttemptFailed) and not self.state.train.owns(entry.message.task)

    def _walk(self, entry: PromptsConsumed) -> None:
        cursor = self.state.admission.cursor
        taken = [cursor.take() for _ in range(entry.cursor - cursor.position)]
        if entry.task:
            self.state.admit(taken[-1])

    def _push(self, at_s: float, entry: Pushed) -> None:
        if not self.state.train.owns(entry.header.task):
            return
        if entry.refill:
            self._applying.on_entry(at_s, entry)
            return
        task = self.state.train.get(entry.header.task)
        place = entry.body
        if task is None:
            return
        if place is None:
            self.unrecorded += bool(entry.header.sequences)
            self.state.train.end(task, "rejected")
            return
        group = LoggedGroup(entry.header, lambda: self._reader.body(place))
        trained = np.array(entry.trained, dtype=np.int64)
        _, rows, _ = self.flow.intake.judge(group, trained, task)
        self.flow.intake.persist(rows, place)

    def _request(self, entry: BatchRequested) -> None:
        if entry.batch and entry.batch not in self._seen:
            self._seen.add(entry.batch)
            self._owed[entry.message.policy] += 1

    def _compare(self, entry: Acknowledged) -> None:
        """The result of the run's own update of this number."""
        policy = entry.message.policy
        self._run_made[policy] += 1
        step = self._run_made[policy]
        digest = self._digests.get((policy, step), "")
        self.record.setdefault((policy, step), OriginalStep(dict(entry.message.metrics), digest))

    def _cut(self, policy: str) -> None:
        newest = self.state.versions.newest[policy]
        stream = self.state.streams[policy]
        if not self._owed[policy] or stream.outstanding is not None or newest < 0:
            return
        request = NextBatch(policy=policy, version=newest, wait_s=0.0)
        if self.flow.training.serve(request) is not None:
            self._owed[policy] -= 1
            self._offer(policy)
