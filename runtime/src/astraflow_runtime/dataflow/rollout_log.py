"""Writes groups and failed attempts of tasks to the rollout store."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from astraflow_core.config.models import RunConfig
from astraflow_runtime.dataflow.journal.entries import Judged
from astraflow_runtime.dataflow.tasks.queue import TaskRecord
from astraflow_runtime.rollouts.building import trajectories
from astraflow_runtime.rollouts.earlier import EarlierGroups
from astraflow_runtime.rollouts.records import (
    FailureRecord,
    GroupLine,
    GroupRecord,
    StoredVerdict,
)
from astraflow_runtime.rollouts.sampling import GroupSampling, number_of
from astraflow_runtime.rollouts.segments import FOLDER, IndexTail, segments
from astraflow_runtime.rollouts.writer import RolloutWriter, dataflow_bytes, redaction
from astraflow_wire.groups import ReceivedGroup
from astraflow_wire.http.drafts import PastSequence
from astraflow_wire.messages import FailTask

WRITER = "dataflow"
FAILURES_PER_UPDATE = 4
"""The most failed attempts that are stored between two updates: one failure may be followed by
many.
"""
CATCH_UP_S = 5.0
"""Longest wait for the disk per group during a replay of the journal."""


class RolloutLog:
    """Writes what ``sampling`` chooses through ``writer``; nothing without a writer. ``earlier``: what is stored."""

    def __init__(
        self,
        sampling: GroupSampling,
        writer: RolloutWriter | None,
        written: frozenset[int],
        earlier: EarlierGroups | None = None,
    ) -> None:
        self._sampling, self._writer, self._earlier = sampling, writer, earlier
        self._written = written
        self._updates, self._failures = -1, 0

    @classmethod
    def of_run(cls, config: RunConfig, directory: Path) -> RolloutLog:
        """The log of a run; :class:`astraflow_core.errors.UserError` if its ``redact`` cannot be
        used.
        """
        sampling = GroupSampling.of_run(config)
        if not sampling.some:
            return NO_ROLLOUTS
        folder = directory / FOLDER
        writer = RolloutWriter(
            folder, WRITER, dataflow_bytes(config), redaction(config.rollouts.redact)
        )
        return cls(sampling, writer, _written(folder), EarlierGroups(folder, WRITER))

    @property
    def stores(self) -> bool:
        """Whether groups are stored."""
        return self._writer is not None

    def earlier(self, prompt_id: str, most_bytes: Mapping[str, int]) -> list[PastSequence]:
        """Stored sequences of a prompt (:meth:`EarlierGroups.find`), read from disk. May be called in any thread."""
        return [] if self._earlier is None else self._earlier.find(prompt_id, most_bytes)

    def pushed(
        self,
        received: ReceivedGroup,
        task: TaskRecord,
        judged: Sequence[Judged],
        newest: Mapping[str, int],
        first_trajectory: int,
        wait_s: float = 0.0,
    ) -> None:
        """A group was received. ``first_trajectory``: number in the run of its first trajectory, -1
        if no policy accepted the group.
        """
        if self._writer is None:
            return
        number = number_of(task.id)
        if number is None or not self._sampling.stores(number):
            return
        now, prompt, versions = time.time(), task.prompt, dict(newest)
        verdicts = [_verdict(each) for each in judged]

        def build() -> GroupRecord:
            header = received.header
            return GroupRecord(
                number=number,
                group=task.id,
                time_s=now,
                raas=header.raas,
                prompt_id=prompt.id,
                prompt_data=prompt.data,
                accepted=first_trajectory >= 0,
                trajectories=trajectories(received),
                verdicts=verdicts,
                newest=versions,
                rejected=header.rejected,
                late=header.late,
                first_trajectory=first_trajectory,
            )

        self._writer.put(build, wait_s=wait_s)

    def lacks(self, task: str) -> bool:
        """Whether a group that an earlier process of this run received should be stored and is not:
        the process was killed before writing it.
        """
        number = number_of(task)
        if number is None or not self._sampling.stores(number) or number in self._written:
            return False
        # Groups before the oldest stored one were evicted.
        return number > min(self._written, default=-1)

    def caught_up(
        self,
        body: bytes,
        task: TaskRecord,
        judged: Sequence[Judged],
        newest: Mapping[str, int],
        first_trajectory: int,
    ) -> None:
        """Do :meth:`pushed` for a group that :meth:`lacks`."""
        received = ReceivedGroup(body)
        self.pushed(received, task, judged, newest, first_trajectory, CATCH_UP_S)

    def failed(self, task: TaskRecord, message: FailTask, updates: int) -> None:
        """An attempt at a training task failed, after ``updates`` of all policies."""
        number = number_of(task.id)
        if self._writer is None or number is None:
            return
        if updates != self._updates:
            self._updates, self._failures = updates, 0
        self._failures += 1
        if self._failures > FAILURES_PER_UPDATE:
            return
        record = FailureRecord(
            number=number,
            group=task.id,
            time_s=time.time(),
            raas=message.raas,
            prompt_id=task.prompt.id,
            prompt_data=task.prompt.data,
            error=message.error,
            environment=message.environment,
            fatal=message.fatal,
            attempt=max(1, task.attempts),
        )
        self._writer.put(lambda: record)

    def mark(self) -> int:
        """A mark for :meth:`wait`."""
        return self._writer.queued if self._writer is not None else 0

    def wait(self, mark: int, longest_s: float) -> bool:
        """Wait until everything before a mark is stored or dropped; false if that takes longer."""
        return self._writer is None or self._writer.wait(mark, longest_s)

    def close(self) -> None:
        """Write what is pending, and close."""
        if self._writer is not None:
            self._writer.close()


NO_ROLLOUTS = RolloutLog(GroupSampling(0, 1, 0), None, frozenset())
"""A log that stores nothing."""


def _written(folder: Path) -> frozenset[int]:
    """The numbers of the stored groups."""
    return frozenset(
        line.number
        for segment in segments(folder, WRITER)
        for line in IndexTail(folder, segment).new_lines()
        if isinstance(line, GroupLine)
    )


def _verdict(judged: Judged) -> StoredVerdict:
    return StoredVerdict(
        judged.policy,
        judged.by,
        judged.reason,
        len(judged.indexes),
        list(judged.shadow_rejections),
    )
