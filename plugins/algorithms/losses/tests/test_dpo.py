"""``dpo`` against its formula: the margin of each pair, differentiated by steps of ``1e-30 i``."""

from __future__ import annotations

import cmath
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from astraflow_core.types import Batch, ComponentContext, LossInputs, RunInfo
from astraflow_plugin_losses.algorithms.dpo import Dpo, DpoConfig

BETA = 0.3


def make(spread: float) -> Batch:
    """Groups of 3, 2 (equal rewards), 2 (of which the best row trains nothing) and 3 (a tie for the best)."""
    rng = np.random.default_rng(2)
    rewards = np.array([0.5, 1, 0, 1, 1, 1, 0, 2, 2, -1], np.float32)
    lengths = rng.integers(3, 7, 10).astype(np.int32)
    total, starts = int(lengths.sum()), np.cumsum(lengths) - lengths
    mask = rng.random(total) < 0.6
    mask[starts + 1], mask[starts] = True, False
    mask[starts[5] : starts[5] + lengths[5]] = False
    behaviour = (-3 * rng.random(total)).astype(np.float32)

    def near() -> Any:
        return (behaviour + spread * rng.uniform(-1, 1, total)).astype(np.float32)

    group = np.repeat(np.arange(4), [3, 2, 2, 3])
    return Batch(
        id="b", policy="p", version=1, lengths=lengths, tokens=np.zeros(total, np.int32),
        loss_mask=mask, logprobs=behaviour, versions=np.where(mask, 0, -1).astype(np.int32),
        rewards=rewards, group=group, trajectory=np.arange(10)[::-1].copy(),
        group_size=np.array([3, 2, 2, 3], np.int32)[group],
        group_mean=np.array([0.5, 1, 0.5, 1], np.float32)[group],
        group_std=np.ones(10, np.float32), reference=near(), current=near(),
    )  # fmt: skip


PAIRS = ((1, 2), (8, 9))
"""Row 8 is of an earlier trajectory than row 7, which has the same reward."""


def by_hand(batch: Batch, current: list[complex]) -> tuple[complex, list[float]]:
    total, margins = 0j, []
    for chosen, rejected in PAIRS:
        margin = 0j
        for row, sign in ((chosen, 1), (rejected, -1)):
            for t in range(batch.offsets[row], batch.offsets[row + 1]):
                if batch.loss_mask[t]:
                    margin += sign * BETA * (current[t] - float(batch.reference[t]))  # type: ignore[index]
        total += cmath.log(1 + cmath.exp(-margin)) / len(PAIRS)
        margins.append(margin.real)
    return total, margins


@pytest.mark.parametrize("spread", [0.1, 2.0, 25.0])
def test_value_gradient_and_metrics_are_those_of_the_formula(spread: float) -> None:
    run = RunInfo("test", 0, 1, 0, ("p",), Path("."))
    context = ComponentContext(run=run, role="trainer", policy="p", seed=0, directory=Path("."))
    algorithm = Dpo(DpoConfig(beta=BETA), context)
    batch = make(spread)
    batch = replace(batch, advantages=algorithm.advantages(batch))
    batch = replace(batch, weights=algorithm.weights(batch))

    def tensor(values: Any) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64)

    leaf = tensor(batch.current).requires_grad_()
    loss = algorithm.loss(
        LossInputs(
            logprobs=leaf, behaviour=tensor(batch.logprobs), advantages=tensor(batch.advantages),
            mask=torch.from_numpy(batch.loss_mask), row=torch.from_numpy(batch.row_of_token),
            rows=len(batch), weights={n: tensor(w) for n, w in batch.weights.items()}, step=0,
            reference=tensor(batch.reference), current=tensor(batch.current),
        )
    )  # fmt: skip
    value = loss.terms["policy"][1]
    value.backward()
    point = [complex(x) for x in batch.current]  # type: ignore[union-attr]
    expected, margins = by_hand(batch, point)
    assert value.item() == pytest.approx(expected.real, rel=1e-6)
    assert loss.metrics["margin"].item() == pytest.approx(np.mean(margins), rel=1e-6)
    assert loss.metrics["accuracy"].item() == pytest.approx(np.mean([m > 0 for m in margins]))
    for t in range(len(point)):
        point[t] += 1e-30j
        slope = by_hand(batch, point)[0].imag / 1e-30
        point[t] = complex(point[t].real)
        assert leaf.grad is not None
        assert leaf.grad[t].item() == pytest.approx(slope, rel=1e-6, abs=1e-12)
