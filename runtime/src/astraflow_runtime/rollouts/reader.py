"""Reading the rollouts of a run, live or ended::

    rollouts = RolloutReader("runs/quickstart-20260102-030405")
    for entry in rollouts.entries("reward<0.5 and step>10"):
        print(entry.group, entry.rewards, entry.outcome)
    group = rollouts.group("train-12")
    group.trajectories[0].stored.turns

Only the indexes are kept in memory, some hundred bytes per trajectory; records are read on demand.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

from astraflow_core.errors import UserError
from astraflow_runtime.rollouts.filters import EVERYTHING, Filter
from astraflow_runtime.rollouts.records import (
    FailureLine,
    FailureRecord,
    GroupLine,
    GroupRecord,
    IndexLine,
    Record,
    StoredSequence,
    StoredTrajectory,
    TrainedRow,
    TrajectoryLine,
    UpdateLine,
    UpdateRecord,
)
from astraflow_runtime.rollouts.sampling import number_of
from astraflow_runtime.rollouts.segments import FOLDER, IndexTail, Segment, read, segments
from astraflow_runtime.rollouts.texts import RecordTexts, RolloutSearch

Outcome = Literal["trained", "waiting", "rejected", "failed"]
T = TypeVar("T", bound=Record)

POLL_S = 0.5
"""Seconds between two checks of a growing store."""
HELD_RECORDS = 64
"""Records that are cached: a page of a viewer."""


@dataclass(frozen=True, slots=True)
class RolloutEntry:
    """A trajectory, or an attempt at a group that failed (``outcome`` is ``"failed"``; it has no trajectory, so that
    ``index`` is -1).

    ``group``: name of its task, ``number``: that of the group in the run, ``index``: of the trajectory in its group.
    ``time_s``: since 1970. ``rewards``: by policy. ``tokens`` in its sequences, ``sampled`` ones among them; ``versions``:
    lowest and highest that sampled it (-1: none). ``tools``: names of those that it called.
    ``updates``: policy and step of each update with it. ``reason``: why it was rejected, or the
    error. ``environment``: kind of failure, if an environment failed. ``outcome``: ``"waiting"`` as
    long as no update with it is stored.
    """

    group: str
    number: int
    index: int
    prompt_id: str
    raas: str
    time_s: float
    outcome: Outcome
    rewards: dict[str, float] = field(default_factory=dict)
    tokens: int = 0
    sampled: int = 0
    turns: int = 0
    truncated: bool = False
    versions: tuple[int, int] = (-1, -1)
    tools: tuple[str, ...] = ()
    updates: tuple[tuple[str, int], ...] = ()
    reason: str = ""
    environment: str = ""

    @property
    def reward(self) -> float | None:
        """Mean of its policies' rewards; ``None`` if it has none."""
        return sum(self.rewards.values()) / len(self.rewards) if self.rewards else None

    @property
    def step(self) -> int | None:
        """The first step that trained on it, counted from 1; ``None`` if there is none yet."""
        return min((step for _, step in self.updates), default=None)


@dataclass(frozen=True, slots=True)
class TrainedSequence:
    """A sequence in an update: number ``step`` of ``policy``, with ``batch``, of ``version``."""

    policy: str
    batch: str
    step: int
    version: int
    row: TrainedRow


@dataclass(frozen=True, slots=True)
class LoadedTrajectory:
    """A trajectory as it is stored. ``trained``: for each of its sequences the updates with it, in their order."""

    entry: RolloutEntry
    stored: StoredTrajectory
    trained: tuple[tuple[TrainedSequence, ...], ...]


@dataclass(frozen=True, slots=True)
class LoadedGroup:
    """A group as it is stored, with its trajectories in their order."""

    record: GroupRecord
    trajectories: tuple[LoadedTrajectory, ...]

    def best_and_worst(self) -> tuple[LoadedTrajectory, LoadedTrajectory]:
        """The trajectories with the highest and the lowest reward, the first of those that are equal. :class:`UserError`
        if there are fewer than two."""
        if len(self.trajectories) < 2:
            raise UserError(
                f"group {self.record.group} has {len(self.trajectories)} trajectories; at least 2 are compared"
            )
        ranked = sorted(self.trajectories, key=lambda each: -(each.entry.reward or 0.0))
        return ranked[0], ranked[-1]


@dataclass(frozen=True, slots=True)
class _Use:
    """An update with some ``trajectories`` of a group."""

    line: UpdateLine
    trajectories: set[int]


class RolloutReader:
    """The rollout store of the run in ``run_directory``, as it was at the last :meth:`refresh`.

    Raises :class:`UserError` if there is none. It takes no lock and writes nothing: the run may be
    running, or may have been killed in the middle of a record, which is then skipped. Not
    thread-safe.
    """

    def __init__(self, run_directory: Path | str) -> None:
        self.directory = Path(run_directory)
        self.folder = self.directory / FOLDER
        if not self.folder.is_dir():
            raise UserError(
                f"the run in {self.directory} has no rollouts ({self.folder} is missing): it has pushed none yet, or has "
                "[rollouts] groups_per_step = 0"
            )
        self._tails: dict[Segment, IndexTail] = {}
        self._groups: dict[int, tuple[Segment, GroupLine]] = {}
        self._failures: dict[tuple[str, int, float], tuple[Segment, FailureLine]] = {}
        self._updates: dict[str, tuple[Segment, UpdateLine]] = {}
        self._uses: dict[int, dict[str, _Use]] = {}
        self._dropped: dict[Segment, int] = {}
        self._held: OrderedDict[tuple[Segment, int], Record] = OrderedDict()
        self._record_texts = RecordTexts(self.folder)
        self.refresh()

    # -- what there is ---------------------------------------------------------------------------

    def refresh(self) -> int:
        """Read new records, and drop those that newer rollouts replaced. Returns the number of new
        records.
        """
        there = segments(self.folder)
        if gone := self._tails.keys() - set(there):
            self._forget(gone)
        count = 0
        for segment in there:
            tail = self._tails.setdefault(segment, IndexTail(self.folder, segment))
            for line in tail.new_lines():
                self._index_line(segment, line)
                count += 1
        return count

    def __len__(self) -> int:
        """Trajectories and failed attempts that are stored."""
        return len(self._failures) + sum(len(g.trajectories) for _, g in self._groups.values())

    @property
    def dropped(self) -> int:
        """The number of records that the run reports as dropped: it never waits for its store."""
        return sum(self._dropped.values())

    @property
    def group_names(self) -> list[str]:
        """The names of all stored groups, in the order of their numbers."""
        return [self._groups[number][1].group for number in sorted(self._groups)]

    def entries(
        self, where: Filter | str = EVERYTHING, *, newest_first: bool = False
    ) -> Iterator[RolloutEntry]:
        """The entries that match ``where``, in the order in which they were stored. Only a filter
        on ``text`` reads records.
        """
        where = Filter.parse(where) if isinstance(where, str) else where
        for _, line in self._lines(newest_first):
            yield from (entry for entry in self._entries_of(line) if self._fits(where, entry))

    def search(self, where: Filter | str, *, most: int, for_s: float) -> RolloutSearch:
        """The newest entries that match ``where``, at most ``most``, as far as is known after ``for_s`` seconds of reading
        texts. What was read is remembered for the next call, which continues. A record that is damaged is passed over.
        """
        where = Filter.parse(where) if isinstance(where, str) else where
        lines = self._lines(newest_first=True)
        return self._record_texts.search(lines, self._entries_of, where, most, for_s)

    def follow(
        self,
        where: Filter | str = EVERYTHING,
        *,
        for_s: float | None = None,
        ended: Callable[[], bool] = lambda: False,
        poll_s: float = POLL_S,
    ) -> Iterator[RolloutEntry]:
        """New entries as they are stored, each once, and so before they are trained on. Ends after
        ``for_s`` seconds (``None``: never), or once ``ended()`` is true and all entries were
        returned.
        """
        where = Filter.parse(where) if isinstance(where, str) else where
        self.refresh()
        known = self._groups.keys() | set[int]()
        failed = self._failures.keys() | set[tuple[str, int, float]]()
        until = None if for_s is None else time.monotonic() + for_s
        while True:
            last = ended() or (until is not None and time.monotonic() >= until)
            self.refresh()
            for number in sorted(self._groups.keys() - known):
                known.add(number)
                line = self._groups[number][1]
                yield from (e for e in self._entries_of(line) if self._fits(where, e))
            for key in sorted(self._failures.keys() - failed, key=lambda k: k[2]):
                failed.add(key)
                failure = self._failures[key][1]
                yield from (e for e in self._entries_of(failure) if self._fits(where, e))
            if last:
                return
            time.sleep(poll_s)

    # -- what is stored of one -------------------------------------------------------------------

    def group(self, group: str | int) -> LoadedGroup:
        """A group by the name of its task or its number, joined with its use by the trainers. :class:`UserError` if
        it is not stored."""
        number = number_of(group) if isinstance(group, str) else group
        if number is None or number not in self._groups:
            names = self.group_names
            shown = f"{names[0]} to {names[-1]} are, with gaps" if names else "none is"
            raise UserError(f"group {group} is not stored in {self.folder}; {shown}")
        segment, line = self._groups[number]
        record = self._read(segment, line, GroupRecord)
        trained = self._trained(number, record)
        loaded = []
        for entry, stored in zip(self._entries_of(line), record.trajectories, strict=True):
            uses = tuple(tuple(trained.get(id(sequence), ())) for sequence in stored.sequences)
            loaded.append(LoadedTrajectory(entry, stored, uses))
        return LoadedGroup(record, tuple(loaded))

    def load(self, entry: RolloutEntry) -> LoadedTrajectory:
        """The trajectory of an entry. :class:`UserError` if it failed, or is not stored any longer."""
        if entry.index < 0:
            raise UserError(f"an attempt at group {entry.group} failed; it has no trajectory")
        return self.group(entry.number).trajectories[entry.index]

    def failure(self, entry: RolloutEntry) -> FailureRecord:
        """The record of a failed attempt. :class:`UserError` if the entry is of another kind."""
        found = self._failures.get((entry.raas, entry.number, entry.time_s))
        if found is None:
            raise UserError(f"no failed attempt at group {entry.group} is stored for this entry")
        return self._read(*found, FailureRecord)

    def update_lines(self) -> list[UpdateLine]:
        """What the index says of :meth:`updates`, in order."""
        lines = (line for _, line in self._updates.values())
        return sorted(lines, key=lambda line: (line.policy, line.step))

    def updates(self) -> Iterator[UpdateRecord]:
        """The records of updates, policy by policy, in order."""
        for segment, line in sorted(
            self._updates.values(), key=lambda found: (found[1].policy, found[1].step)
        ):
            yield self._read(segment, line, UpdateRecord)

    # -- inside ----------------------------------------------------------------------------------

    def _index_line(self, segment: Segment, line: IndexLine) -> None:
        self._dropped[segment] = max(self._dropped.get(segment, 0), line.dropped)
        if isinstance(line, GroupLine):
            self._groups[line.number] = segment, line
        elif isinstance(line, FailureLine):
            self._failures[line.raas, line.number, line.time_s] = segment, line
        else:
            # A restarted trainer repeats an update; the last one counts.
            if (before := self._updates.get(line.batch)) is not None:
                self._unuse(before[1])
            self._updates[line.batch] = segment, line
            for number, trajectory in line.rows:
                uses = self._uses.setdefault(number, {})
                uses.setdefault(line.batch, _Use(line, set())).trajectories.add(trajectory)

    def _unuse(self, line: UpdateLine) -> None:
        for number, _ in line.rows:
            self._uses.get(number, {}).pop(line.batch, None)

    def _forget(self, gone: set[Segment]) -> None:
        self._record_texts.forget(gone)
        for segment in gone:
            del self._tails[segment]
        self._groups = {k: found for k, found in self._groups.items() if found[0] not in gone}
        self._failures = {k: found for k, found in self._failures.items() if found[0] not in gone}
        for batch in [b for b, found in self._updates.items() if found[0] in gone]:
            self._unuse(self._updates.pop(batch)[1])

    def _entries_of(self, line: GroupLine | FailureLine) -> list[RolloutEntry]:
        if isinstance(line, FailureLine):
            return [
                RolloutEntry(
                    line.group,
                    line.number,
                    -1,
                    line.prompt_id,
                    line.raas,
                    line.time_s,
                    "failed",
                    reason=line.error,
                    environment=line.environment,
                )
            ]
        uses = self._uses_of(line.number)
        found = []
        for index, each in enumerate(line.trajectories):
            number = line.first_trajectory + index
            own = [use.line for use in uses if number in use.trajectories]
            found.append(_entry(line, index, each, tuple((u.policy, u.step) for u in own)))
        return found

    def _uses_of(self, number: int) -> list[_Use]:
        """The updates with a group, in their order."""
        uses = self._uses.get(number, {}).values()
        return sorted(uses, key=lambda use: (use.line.step, use.line.policy))

    def _lines(self, newest_first: bool) -> list[tuple[Segment, GroupLine | FailureLine]]:
        """Those of groups and failed attempts, in the order in which they were stored."""
        lines: list[tuple[Segment, GroupLine | FailureLine]] = [*self._groups.values()]
        lines += self._failures.values()
        lines.sort(key=lambda each: (each[1].time_s, each[1].number), reverse=newest_first)
        return lines

    def _fits(self, where: Filter, entry: RolloutEntry) -> bool:
        return where.matches(entry, lambda: self._texts(entry))

    def _texts(self, entry: RolloutEntry) -> list[str]:
        """All texts of a trajectory, or of the prompt of a failed attempt."""
        if entry.index < 0:
            failed = self._failures[entry.raas, entry.number, entry.time_s]
            return self._record_texts.of(*failed)[0]
        return self._record_texts.of(*self._groups[entry.number])[entry.index]

    def _trained(self, number: int, record: GroupRecord) -> dict[int, list[TrainedSequence]]:
        """Identity of a stored sequence → its updates. Rows of one trajectory with the same tokens
        are distinguished by their order.
        """
        found: dict[int, list[TrainedSequence]] = {}
        for use in self._uses_of(number):
            update = self._read(*self._updates[use.line.batch], UpdateRecord)
            rows = [row for row in update.rows if row.number == number]
            for sequence, row in _joined(record, rows, update.policy):
                trained = TrainedSequence(
                    update.policy, update.batch, update.step, update.version, row
                )
                found.setdefault(id(sequence), []).append(trained)
        return found

    def _read(self, segment: Segment, line: IndexLine, kind: type[T]) -> T:
        key = (segment, line.offset)
        if key in self._held:
            self._held.move_to_end(key)
            record = self._held[key]
        else:
            record = self._held[key] = read(self.folder, segment, line)
            if len(self._held) > HELD_RECORDS:
                self._held.popitem(last=False)
        if not isinstance(record, kind):
            raise UserError(
                f"{segment.index(self.folder)}: the record at byte {line.offset} is not a {kind.__name__}"
            )
        return record


def _entry(
    line: GroupLine,
    index: int,
    each: TrajectoryLine,
    updates: tuple[tuple[str, int], ...],
) -> RolloutEntry:
    outcome: Outcome = "trained" if updates else "waiting" if line.accepted else "rejected"
    return RolloutEntry(
        group=line.group,
        number=line.number,
        index=index,
        prompt_id=line.prompt_id,
        raas=line.raas,
        time_s=line.time_s,
        outcome=outcome,
        rewards=each.rewards,
        tokens=each.tokens,
        sampled=each.sampled,
        turns=each.turns,
        truncated=each.truncated,
        versions=each.versions,
        tools=tuple(each.tools),
        updates=updates,
        reason=line.reason,
    )


def _joined(
    record: GroupRecord, rows: list[TrainedRow], policy: str
) -> Iterator[tuple[StoredSequence, TrainedRow]]:
    """Each sequence of a group with its row in a batch of ``policy``: the one with the same tokens, of the same
    trajectory."""
    free = list(rows)
    for index, trajectory in enumerate(record.trajectories):
        number = record.first_trajectory + index
        for sequence in trajectory.sequences:
            for row in free:
                own = row.borrowed or sequence.policy == policy
                if own and (row.trajectory, row.digest) == (number, sequence.digest):
                    free.remove(row)
                    yield sequence, row
                    break
