"""Algorithms of turns report which share of their inputs a workflow provided."""

from __future__ import annotations

import logging
import runpy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from astraflow_core.types import Batch
from astraflow_testing.stamping import stamped

C = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("public_cases.py"))))
build, completed, loss_of = C.build, C.completed, C.loss_of

# Two trajectories of two turns each: of one and of two tokens.
MASK = np.array([False, True, False, True, True] * 2)
LAST = np.array([1, 4, 6, 9])


def batch_of(rewards: list[float], states: list[int]) -> Batch:
    none = np.zeros(2, np.float32)
    turn_rewards, turn_states = np.zeros(10, np.float32), np.zeros(10, np.int64)
    turn_rewards[LAST], turn_states[LAST] = rewards, states
    batch = Batch(
        id="b", policy="p", version=3, lengths=np.array([5, 5], np.int32), tokens=np.zeros(10, np.int32),
        loss_mask=MASK, logprobs=np.where(MASK, -1, 0).astype(np.float32),
        versions=np.where(MASK, 2, -1).astype(np.int32), rewards=np.array([1, 0], np.float32),
        group=np.zeros(2, np.int64), trajectory=np.arange(2), group_size=none.astype(np.int32),
        group_mean=none, group_std=none, turn_rewards=turn_rewards, turn_states=turn_states,
    )  # fmt: skip
    return stamped(batch, np.zeros(2, np.bool_))


@pytest.mark.parametrize(
    ("use", "metric", "give"),
    [
        ("gigpo", "turns_with_state", "Sequence.turn_states"),
        ("turn_grpo", "turns_rewarded", "Sequence.turn_rewards"),
        ("reinforce", "turns_rewarded", "Sequence.turn_rewards"),
    ],
)
def test_a_workflow_that_gives_nothing_for_turns_is_reported_once(
    use: str, metric: str, give: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    algorithm = build(use, {})
    some = [0.0, 0.5, 0.0, -0.5], [0, 7, 0, 7]
    if use != "gigpo":
        some = some[0], [0] * 4
    half = batch_of(*some)
    one = batch_of([0.0, 0.5, 0.5, 0.5], [7, 7, 0, 7])
    nothing = batch_of([0.0] * 4, [0] * 4)
    for batch, share, told in ((half, 0.5, 0), (one, 0.75, 0), (nothing, 0, 1), (nothing, 0, 1)):
        batch = completed(algorithm, batch)
        found = loss_of(algorithm, batch, batch.logprobs)[0].metrics[metric]
        assert found.item() == pytest.approx(share)
        assert len(caplog.records) == told
    said = caplog.messages[0]
    assert said.startswith(f"{use}: none of the 4 turns of batch b ") and give in said
    assert "`environment`" in said
    # Each row is a micro-batch: what they show adds up.
    whole = completed(algorithm, one)
    parts = [whole.take(np.array([row])) for row in (0, 1)]
    weights = algorithm.weights(replace(one, current=None))
    np.testing.assert_allclose(weights[metric].sum(), 0.75)
    assert sum(part.weights[metric].sum() for part in parts) == pytest.approx(0.75)
