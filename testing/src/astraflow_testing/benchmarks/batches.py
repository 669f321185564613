"""Batches whose rows have one length, on which algorithms and trainers are measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from astraflow_core.types import Batch
from astraflow_testing.stamping import stamped, with_named_rewards

VERSION = 4
"""The version that the batch updates."""


@dataclass(frozen=True, slots=True)
class BatchShape:
    """``rows`` in groups of ``group``, each with ``prompt`` and ``sampled`` tokens below ``vocabulary``. A row was
    sampled by one of the ``versions`` before :data:`VERSION`."""

    rows: int
    group: int
    prompt: int
    sampled: int
    vocabulary: int
    versions: int = 1

    @property
    def tokens(self) -> int:
        """Of the batch."""
        return self.rows * (self.prompt + self.sampled)


def even_batch(generator: np.random.Generator, shape: BatchShape) -> Batch:
    """A batch in which half of the rewards are 1, with everything that an algorithm may need of it."""
    width, count = shape.prompt + shape.sampled, shape.tokens
    lengths = np.full(shape.rows, width, np.int32)
    mask = np.tile(np.arange(width) >= shape.prompt, shape.rows)
    logprobs = np.where(mask, generator.normal(-1.0, 0.3, count), 0.0).astype(np.float32)
    rewards = generator.integers(0, 2, shape.rows).astype(np.float32)
    group = np.repeat(np.arange(shape.rows // shape.group), shape.group)
    last = lengths.cumsum() - 1
    turn_rewards, turn_states = np.zeros(count, np.float32), np.zeros(count, np.int64)
    turn_rewards[last], turn_states[last] = rewards, group + 1
    sampled_by = generator.integers(VERSION - shape.versions, VERSION, shape.rows)

    def near(scale: float) -> Any:
        return np.where(mask, logprobs + generator.normal(0, scale, count), 0.0).astype(np.float32)

    made = Batch(
        id="benchmark",
        policy="solver",
        version=VERSION,
        lengths=lengths,
        tokens=generator.integers(2, shape.vocabulary, count).astype(np.int32),
        loss_mask=mask,
        logprobs=logprobs,
        versions=np.where(mask, np.repeat(sampled_by, lengths), -1).astype(np.int32),
        rewards=rewards,
        group=group,
        trajectory=np.arange(shape.rows),
        group_size=np.full(shape.rows, shape.group, np.int32),
        group_mean=np.zeros(shape.rows, np.float32),
        group_std=np.zeros(shape.rows, np.float32),
        reference=near(0.2),
        proximal=near(0.1),
        current=near(0.1),
        values=generator.normal(0.5, 0.1, count).astype(np.float32),
        turn_rewards=turn_rewards,
        turn_states=turn_states,
        logit_gradients=np.where(mask, generator.random(count), 0.0).astype(np.float32),
    )
    return stamped(with_named_rewards(made))
