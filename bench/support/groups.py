"""Push bodies of a given size, every sequence with an id of its own in its tokens."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from astraflow_core.types import Group, Sequence, Trajectory
from astraflow_wire.groups import encode_group
from astraflow_wire.messages import AnnouncementMessage, Task

FIRST = 1
"""The incarnation of every process here: each registers once."""


def announcement(policy: str, version: int = 0) -> AnnouncementMessage:
    """The announcement of a version that is never fetched."""
    return AnnouncementMessage(
        policy=policy,
        version=version,
        transport="none",
        endpoints=[],
        digest="0",
        size=1,
        incarnation=FIRST,
    )


def sequence_ids(task: str, size: int) -> range:
    """The ids of the sequences of a task, different for every task of a run."""
    first = int(task.rpartition("-")[2]) * size
    return range(first, first + size)


class Groups:
    """Groups of ``size`` trajectories, each with ``turns`` sequences of ``length`` tokens, a quarter of them
    prompt; the turns belong to the ``policies`` one after another, over and over."""

    def __init__(
        self, size: int, length: int, policies: tuple[str, ...] = ("solver",), turns: int = 1
    ) -> None:
        generator = np.random.default_rng(0)
        self.size, self.length = size, length
        self.policies, self.turns = policies, turns
        self._mask = np.arange(length) >= max(1, length // 4)
        drawn = -generator.random(length, dtype=np.float32)
        self._logprobs = np.where(self._mask, drawn, np.float32(0))
        self._tokens = generator.integers(0, 50_000, length, dtype=np.int32)

    def ids(self, task: str, policy: str) -> list[int]:
        """The ids of the sequences of a policy in a task."""
        own = self.policies.index(policy)
        all_ids = sequence_ids(task, self.size * self.turns)
        return [i for n, i in enumerate(all_ids) if n % self.turns % len(self.policies) == own]

    def body(self, task: Task, raas: str, versions: Mapping[str, int] | None = None) -> bytes:
        """The push of a finished task, sampled by ``versions`` (default: 0); rewards alternate between 0 and 1."""
        ids = iter(sequence_ids(task.id, self.size * self.turns))
        trajectories = []
        for number in range(self.size):
            rows = tuple(
                self._sequence(next(ids), policy, (versions or {}).get(policy, 0))
                for policy in (self.policies[t % len(self.policies)] for t in range(self.turns))
            )
            rewards = dict.fromkeys(self.policies, float(number % 2))
            trajectories.append(Trajectory(rows, rewards=rewards))
        group = Group(task.id, task.prompt_id, tuple(trajectories))
        return encode_group(group, raas, incarnation=FIRST)

    def _sequence(self, identifier: int, policy: str, version: int) -> Sequence:
        tokens = self._tokens.copy()
        tokens[0] = identifier
        versions = np.where(self._mask, version, -1).astype(np.int32)
        return Sequence(policy, tokens, self._mask, self._logprobs, versions)
