"""What an algorithm costs: advantages, weights, the loss and its backward pass, of a batch of 64 rows."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from astraflow_core.errors import UserError
from astraflow_core.types import Batch
from astraflow_testing.benchmarks.pairs import Work
from astraflow_testing.conformance._algorithms.loss_cases import Case, complete, inputs_of
from astraflow_testing.stamping import stamped

ROWS, GROUP, PROMPT, SAMPLED = 64, 8, 16, 48


def work(algorithm: Any) -> Work:
    """One unit is one batch, as one micro-batch of 4096 float32 tokens. Needs torch."""
    torch = _torch()
    torch.set_num_threads(1)
    case = _case(algorithm)

    def each(count: int) -> None:
        for _ in range(count):
            whole = complete(algorithm, case)
            inputs = inputs_of(torch, algorithm, whole, dtype="float32")
            terms = algorithm.loss(inputs).terms.values()
            total = sum(coefficient * value for coefficient, value in terms if coefficient)
            if torch.is_tensor(total) and total.requires_grad:
                torch.autograd.backward(total)

    return each


def _torch() -> Any:
    """The framework in which losses are measured; the rest of the testing kit does without."""
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise UserError(
            f"losses are measured with torch, which cannot be imported: {error}; pip install torch"
        ) from error


def _case(algorithm: Any) -> Case:
    """A batch, half of whose rewards are 1, with what the algorithm needs."""
    generator = np.random.default_rng(0)
    count = ROWS * (PROMPT + SAMPLED)
    mask = np.tile(np.arange(PROMPT + SAMPLED) >= PROMPT, ROWS)
    logprobs = np.where(mask, generator.normal(-1.0, 0.3, count), 0.0).astype(np.float32)
    rewards = generator.integers(0, 2, ROWS).astype(np.float32)
    lengths = np.full(ROWS, PROMPT + SAMPLED, np.int32)
    group = np.repeat(np.arange(ROWS // GROUP), GROUP)
    last = lengths.cumsum() - 1
    turn_rewards, turn_states = np.zeros(count, np.float32), np.zeros(count, np.int64)
    turn_rewards[last], turn_states[last] = rewards, group + 1

    def near(scale: float) -> Any:
        return np.where(mask, logprobs + generator.normal(0, scale, count), 0.0).astype(np.float32)

    needed: dict[str, Any] = {
        "reference": near(0.2),
        "proximal": near(0.1),
        "current": near(0.1),
        "values": generator.normal(0.5, 0.1, count).astype(np.float32),
    }
    batch = Batch(
        id="benchmark",
        policy="solver",
        version=4,
        lengths=lengths,
        tokens=generator.integers(2, 50, count).astype(np.int32),
        loss_mask=mask,
        logprobs=logprobs,
        versions=np.where(mask, 3, -1).astype(np.int32),
        rewards=rewards,
        group=group,
        trajectory=np.arange(ROWS),
        group_size=np.full(ROWS, GROUP, np.int32),
        group_mean=np.zeros(ROWS, np.float32),
        group_std=np.zeros(ROWS, np.float32),
        turn_rewards=turn_rewards,
        turn_states=turn_states,
        **{name: values for name, values in needed.items() if name in algorithm.needs},
    )
    said = near(0.1).astype(np.float64)
    return Case(stamped(batch), said, 3 * generator.random(count))
