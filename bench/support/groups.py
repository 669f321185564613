"""Push bodies of a given size, every sequence with an id of its own in its tokens."""

from __future__ import annotations

import numpy as np

from astraflow_core.types import Group, Sequence, Trajectory
from astraflow_core.wire.groups import encode_group
from astraflow_core.wire.messages import Task


def sequence_ids(task: str, size: int) -> range:
    """The ids of the sequences of a task, different for every task of a run."""
    first = int(task.rpartition("-")[2]) * size
    return range(first, first + size)


class Groups:
    """Groups of ``size`` sequences of ``length`` tokens, a quarter of them prompt, all of version 0."""

    def __init__(self, size: int, length: int) -> None:
        generator = np.random.default_rng(0)
        self.size, self.length = size, length
        self._mask = np.arange(length) >= max(1, length // 4)
        drawn = -generator.random(length, dtype=np.float32)
        self._logprobs = np.where(self._mask, drawn, np.float32(0))
        self._versions = np.where(self._mask, 0, -1).astype(np.int32)
        self._tokens = generator.integers(0, 50_000, length, dtype=np.int32)

    def body(self, task: Task, raas: str) -> bytes:
        """The push of a finished task; rewards alternate between 0 and 1."""
        trajectories = []
        for number, identifier in enumerate(sequence_ids(task.id, self.size)):
            tokens = self._tokens.copy()
            tokens[0] = identifier
            row = Sequence("solver", tokens, self._mask, self._logprobs, self._versions)
            trajectories.append(Trajectory((row,), rewards={"solver": float(number % 2)}))
        return encode_group(Group(task.id, task.prompt_id, tuple(trajectories)), raas)
