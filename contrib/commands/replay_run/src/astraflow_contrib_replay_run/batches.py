"""The batches of a recorded run, in their order, made again by the code that made them.

The journal is applied to the state of a dataflow as a dataflow applies it that starts again
(:class:`~astraflow_runtime.dataflow.replay.JournalReplay`), and stands still wherever an update was made: until the
trainer of the replay has made it too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import xxhash

from astraflow_contrib_replay_run.recorded_run import RecordedRun
from astraflow_core.errors import RunFailed
from astraflow_runtime.dataflow.clock import RunClock
from astraflow_runtime.dataflow.flow import Dataflow
from astraflow_runtime.dataflow.http.wakeups import Wakeups
from astraflow_runtime.dataflow.journal.entries import (
    Acknowledged,
    Announced,
    BatchRequested,
    Entry,
)
from astraflow_runtime.dataflow.main import build_state, policy_builder
from astraflow_runtime.dataflow.replay import JournalReplay
from astraflow_runtime.dataflow.rows.stream import ServedBatch
from astraflow_wire.messages import AcknowledgeBatch

Parts = list[bytes | memoryview]
ALL_MADE = "all recorded updates were made"


@dataclass(frozen=True, slots=True)
class ReplayedBatch:
    """The batch of update ``step``, counted from 1: its ``parts`` are those of the frame that a trainer gets."""

    id: str
    step: int
    parts: Parts
    digest: str


@dataclass(frozen=True, slots=True)
class BatchesEnd:
    """There is no further batch, and why; ``broken``: the record lacks it."""

    reason: str
    broken: bool = False


@dataclass(frozen=True, slots=True)
class OriginalStep:
    """What the run did with an update: its ``metrics``, and the digest of the weights that it published then (empty: none)."""

    metrics: dict[str, float]
    digest: str = ""


class RecordedBatches:
    """Serves the batches of the policies that train again, of the first ``until`` updates each. ``record``: (policy, step)
    → the result in the run, as far as the journal was read."""

    def __init__(self, recorded: RecordedRun, until: int | None = None) -> None:
        config, directory, catalog = recorded.config, recorded.directory, recorded.catalog
        clock = RunClock()
        state = build_state(config, directory, "", catalog, Wakeups(), clock)
        self.flow = Dataflow(state, policy_builder(config, directory, "", catalog))
        self.state = state
        self.state.replaying = True
        self.record: dict[tuple[str, int], OriginalStep] = {}
        self._policies, self._until = recorded.policies, until
        self._reader = recorded.reader
        self._applying = JournalReplay(self.flow, recorded.reader, clock.set_time)
        self._entries: Iterator[tuple[float, Entry]] = recorded.reader.entries()
        self._held: tuple[float, Entry] | None = None
        self._made: dict[tuple[str, str], dict[str, float]] = {}
        self._digests: dict[tuple[str, int], str] = {}
        self._ended = False
        self._problem = ""
        self._open: dict[str, ReplayedBatch] = {}

    # -- for trainers ------------------------------------------------------------------------------

    def next(self, policy: str) -> ReplayedBatch | BatchesEnd | None:
        """The batch that the trainer of ``policy`` has not acknowledged, the end, or ``None`` while another trainer's turn
        comes first."""
        if (batch := self._open.get(policy)) is not None:
            return batch
        if self._until is not None and self.steps_made(policy) >= self._until:
            return BatchesEnd(f"update {self._until} was made, the last that was asked for")
        try:
            while policy not in self._open and self._read_one():
                pass
        except RunFailed as error:
            self._ended, self._problem = True, str(error)
        if policy in self._open:
            return self._open[policy]
        if not self._ended:
            return None
        return BatchesEnd(self._problem or ALL_MADE, broken=bool(self._problem))

    def acknowledge(self, message: AcknowledgeBatch) -> None:
        """A trainer has made an update."""
        self._made[message.policy, message.batch] = message.metrics
        self._open.pop(message.policy, None)

    def steps_made(self, policy: str) -> int:
        """Updates that the trainer of ``policy`` has made in the replay."""
        return sum(name == policy for name, _ in self._made)

    def read_rest(self) -> None:
        """Have :attr:`record` know what the run did with the last updates too."""
        while len(self.record) < len(self._made) and self._read_one():
            pass

    def close(self) -> None:
        """Close the files of the state."""
        self.state.replaying = False
        self.state.close()

    # -- the journal -------------------------------------------------------------------------------

    def _read_one(self) -> bool:
        """Apply the next entry; ``False`` if there is none, or a trainer must act first."""
        if self._ended:
            return False
        if self._held is None:
            self._held = next(self._entries, None)
        if self._held is None:
            self._ended = True
            return False
        at_s, entry = self._held
        if self._waits(entry):
            return False
        self._held = None
        self._apply(at_s, entry)
        return True

    def _apply(self, at_s: float, entry: Entry) -> None:
        self._note(entry)
        self._applying.on_entry(at_s, self._as_replayed(entry))
        if isinstance(entry, BatchRequested) and entry.batch:
            self._offer(entry.message.policy)

    def _waits(self, entry: Entry) -> bool:
        """Whether the trainer of the replay has yet to make the update that the run had made then."""
        if not isinstance(entry, Acknowledged):
            return False
        policy = entry.message.policy
        batch = self._open.get(policy)
        return batch is not None and batch.id == entry.message.batch

    def _as_replayed(self, entry: Entry) -> Entry:
        """The entry with the metrics of the replay, so that ``metrics.jsonl`` of the replay has them."""
        if not isinstance(entry, Acknowledged):
            return entry
        message = entry.message
        metrics = self._made.get((message.policy, message.batch))
        if metrics is None:
            return entry
        step = self.state.streams[message.policy].updates + 1
        digest = self._digests.get((message.policy, step), "")
        self.record.setdefault((message.policy, step), OriginalStep(dict(message.metrics), digest))
        return msgspec.structs.replace(
            entry, message=msgspec.structs.replace(message, metrics=metrics)
        )

    def _note(self, entry: Entry) -> None:
        """Take note of the weights after an update: they are published before it is acknowledged."""
        if isinstance(entry, Announced):
            stream = self.state.streams.get(entry.message.policy)
            if stream is not None:
                updates = stream.updates + (stream.outstanding is not None)
                self._digests.setdefault((entry.message.policy, updates), entry.message.digest)

    def start_digest(self, policy: str) -> str:
        """The digest of the weights that the run began with; empty before the journal says it."""
        return self._digests.get((policy, 0), "")

    def _offer(self, policy: str) -> None:
        """The batch that was just served, unless the replay has had it or does not want it."""
        stream = self.state.streams[policy]
        batch = stream.outstanding
        wanted = policy in self._policies and batch is not None
        if not wanted or batch is None or (policy, batch.id) in self._made:
            return
        step = stream.updates + 1
        if self._until is None or step <= self._until:
            self._open[policy] = self._encoded(policy, batch, step)

    def _encoded(self, policy: str, batch: ServedBatch, step: int) -> ReplayedBatch:
        try:
            parts = self.state.streams[policy].encode(batch)
        except RunFailed as error:
            if "damaged" in str(error):
                raise RunFailed(f"groups of update {step} of {policy!r}: {error}") from error
            raise RunFailed(
                f"the groups of update {step} of {policy!r} are no longer in the journal: {error}. A run keeps "
                "them with [journal] record_mb"
            ) from error
        return ReplayedBatch(batch.id, step, parts, digest_of(parts))


def digest_of(parts: Parts) -> str:
    """xxh3-128 of the frame, hexadecimal."""
    digest = xxhash.xxh3_128()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
