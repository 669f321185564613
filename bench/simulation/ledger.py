"""The invariants, checked outside the services: pushed groups, published versions and trained rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count

import numpy as np
import xxhash

from astraflow_core.types import Batch
from astraflow_runtime.dataflow.flow import Dataflow
from astraflow_runtime.dataflow.reports.accounting import imbalances

PROGRESS_S = 600.0
"""Virtual seconds within which an update must be made, whatever happens."""
ALLOWED = 1
"""Updates that a row may be trained in."""


class Violation(Exception):
    """An invariant does not hold: ``kind`` names it."""

    def __init__(self, kind: str, text: str) -> None:
        self.kind, self.text = kind, text
        super().__init__(f"{kind}: {text}")

    def __reduce__(self) -> tuple[type[Violation], tuple[str, str]]:
        """For pickling: a violation may come from another process."""
        return Violation, (self.kind, self.text)


@dataclass(frozen=True, slots=True)
class SampledRow:
    """An episode as it was played: ``length`` in tokens; ``weights``: the digest that sampled each; ``attempt``: the number
    of the group, among all that were begun, each time by one RaaS."""

    prompt: str
    length: int
    reward: float
    weights: tuple[str, ...]
    attempt: int = 0


class Ledger:
    """Checks the dataflow after every event, and keeps its own books of rows by the number in their tokens."""

    def __init__(self, max_staleness: int) -> None:
        self._max_staleness = max_staleness
        self.published: dict[int, str] = {}
        """Version → digest of its weights, in this history of the run."""
        self._ever: set[tuple[int, str]] = set()
        self.accepted: dict[str, tuple[int, ...]] = {}
        """Task → numbers of the rows of which a RaaS was told that they are accepted."""
        self.trained: dict[int, tuple[int, ...]] = {}
        """Update, from 0 → rows."""
        self.sampled: dict[int, SampledRow] = {}
        """Number of a row → what was played, whatever became of it."""
        self.history = 0
        """How often the journal was replaced by an earlier copy."""
        self.progressed_s = 0.0
        self.events = 0
        self.publications, self.attempts = count(1), count(1)
        self._newest = -1
        self._trace = xxhash.xxh3_128()

    @property
    def digest(self) -> str:
        """Of all that happened, in order."""
        return self._trace.hexdigest()

    def note(self, *what: object) -> None:
        """Add to the trace."""
        self._trace.update(repr(what).encode())

    def event(self, flow: Dataflow, now: float) -> None:
        """The dataflow has answered somebody, or looked after its deadlines."""
        self.events += 1
        state = flow.state
        if found := imbalances(state.train, state.streams):
            raise Violation("accounting", "; ".join(found))
        newest = state.versions.newest["solver"]
        if newest < self._newest:
            raise Violation("versions", f"the newest was {self._newest} and is now {newest}")
        self._newest = newest
        if now - self.progressed_s > PROGRESS_S:
            raise Violation("progress", f"no update for {now - self.progressed_s:.0f} s")
        for task in state.train.leased():
            for lease in task.leases:
                if lease.since < task.failed_on.get(lease.raas, 0.0):
                    raise Violation(
                        "elsewhere", f"{lease.raas} has {task.id} again, which it failed"
                    )

    def waits(self, flow: Dataflow) -> None:
        """Each reported wait names who waits, who can end it, and a deadline."""
        for wait in flow.waits():
            if not (wait.who and wait.for_whom and wait.what) or not np.isfinite(wait.until_s):
                raise Violation("waits", f"nobody can end {wait}")

    def publish(self, version: int, digest: str) -> None:
        """A trainer publishes. One that was killed may have published the next number, which was never announced."""
        if version <= self._newest:
            raise Violation(
                "versions", f"version {version} is published, and {self._newest} is out"
            )
        self.published[version] = digest
        self._ever.add((version, digest))

    def load(self, raas: str, before: int, version: int, digest: str) -> None:
        """A RaaS loads a version."""
        if version <= before or (version, digest) not in self._ever:
            raise Violation("versions", f"{raas} loads {version} ({digest}) after {before}")

    def train(self, batch: Batch, step: int, now: float) -> None:
        """A trainer makes update ``step``, counted from 0, perhaps once more."""
        sampled = batch.versions[batch.loss_mask]
        if int(sampled.max()) > batch.version:
            raise Violation("versions", f"{batch.id} has tokens of a version after {batch.version}")
        if (oldest := batch.version - int(sampled.min())) > self._max_staleness:
            raise Violation("staleness", f"a token of {batch.id} is {oldest} versions old")
        self._check_weights(batch, sampled.tolist())
        starts = np.concatenate([[0], np.cumsum(batch.lengths)[:-1]])
        rows = tuple(batch.tokens[starts].tolist())
        again = self.trained.get(step)
        if again is not None and again != rows:
            raise Violation("rows", f"update {step} had rows {again} and now has {rows}")
        others = [row for at, used in self.trained.items() if at != step for row in used]
        repeated = set(rows) & set(others)
        if len(set(rows)) < len(rows) or repeated:
            raise Violation(
                "rows", f"rows {sorted(repeated)} are trained more often than {ALLOWED} time"
            )
        if again is None:
            self.progressed_s = now
        self.trained[step] = rows
        self._check_attempts()

    def _check_attempts(self) -> None:
        """A prompt comes once in a run: two RaaS may have played it, and one of them is trained."""
        attempts: dict[str, int] = {}
        for number in _numbers(self.trained.values()):
            row = self.sampled[number]
            if attempts.setdefault(row.prompt, row.attempt) != row.attempt:
                raise Violation("twice", f"two groups of prompt {row.prompt} are trained")

    def _check_weights(self, batch: Batch, versions: list[int]) -> None:
        """Each token was sampled with the weights that are its version in this history of the run."""
        starts = np.concatenate([[0], np.cumsum(batch.lengths)[:-1]])
        numbers = batch.tokens[starts].tolist()
        weights = [digest for number in numbers for digest in self.sampled[number].weights]
        for version, digest in zip(versions, weights, strict=True):
            if self.published[version] != digest:
                raise Violation(
                    "history", f"a token of version {version} was sampled with {digest}"
                )

    def keep(self) -> Callable[[], None]:
        """The journal is copied; the function takes the books back to now, when that copy is put in its place."""
        accepted, trained, newest = dict(self.accepted), dict(self.trained), self._newest

        def go_back() -> None:
            self.accepted, self.trained, self._newest = accepted, trained, newest
            self.history += 1

        return go_back

    def lost(self, flow: Dataflow) -> None:
        """Every row that was accepted is trained, is still there, or is counted as dropped."""
        state = flow.state
        for task in self.accepted:
            if state.train.outcome(task) != "accepted":
                raise Violation("lost", f"{task} was accepted and is {state.train.outcome(task)}")
        stream = state.streams["solver"]
        known = set(_numbers(self.trained.values()))
        for row in stream.rows_needed():
            known.add(int(row.received.tokens[row.received.offsets[row.index]]))
        missing = set(_numbers(self.accepted.values())) - known
        dropped = stream.rows.stale + stream.rows.evicted + stream.rows.untrained
        if len(missing) > dropped:
            raise Violation("lost", f"{len(missing)} rows are gone, and {dropped} were dropped")


def _numbers(rows: Iterable[tuple[int, ...]]) -> list[int]:
    return [number for each in rows for number in each]
