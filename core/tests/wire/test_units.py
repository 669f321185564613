"""Statistics of groups over trajectories and over tokens, against loops, and their way to the trainer."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow_core.types import Batch, units_of
from astraflow_core.wire.batches import decode_batch, encode_batch

sequence = st.tuples(st.integers(-8, 8).map(lambda x: x / 4), st.integers(0, 5))
groups = st.lists(
    st.lists(st.lists(sequence, min_size=1, max_size=4), min_size=1, max_size=4),
    min_size=1,
    max_size=4,
)


@settings(max_examples=80, deadline=None)
@given(groups=groups, seed=st.integers(0, 99))
def test_units_are_those_of_nested_loops(
    groups: list[list[list[tuple[float, int]]]], seed: int
) -> None:
    rows, expected = [], []
    number = 40
    for index, group in enumerate(groups):
        means = [np.mean([reward for reward, _ in turns]) for turns in group]
        tokens = [reward for turns in group for reward, count in turns for _ in range(count)]
        for turns, mean in zip(group, means, strict=True):
            for turn, (reward, count) in enumerate(turns):
                rows.append((index + 7, number, reward, count))
                expected.append(
                    {
                        "turn": turn,
                        "turns": len(turns),
                        "trajectory_reward": mean,
                        "trajectories": len(group),
                        "trajectory_mean": np.mean(means),
                        "trajectory_std": np.std(means, ddof=1) if len(means) > 1 else 0,
                        "trained_tokens": len(tokens),
                        "token_mean": np.mean(tokens) if tokens else 0,
                        "token_std": np.std(tokens, ddof=1) if len(tokens) > 1 else 0,
                    }
                )
            number += 1
    # Groups may lie in any order, as long as the turns of a trajectory follow each other in theirs.
    order = np.argsort(np.random.default_rng(seed).permutation(len(groups))[[r[0] - 7 for r in rows]], kind="stable")  # fmt: skip
    group, trajectory, reward, tokens = (np.array([r[k] for r in rows])[order] for k in range(4))
    found = asdict(units_of(group, trajectory, reward, tokens))
    for name, values in found.items():
        want = [expected[place][name] for place in order]
        np.testing.assert_allclose(values, want, rtol=1e-6, atol=1e-6, err_msg=name)


def test_units_arrive_with_their_batch_and_follow_its_rows() -> None:
    one = np.ones(3, np.int32)
    batch = Batch(
        id="b", policy="p", version=0, lengths=2 * one, tokens=np.arange(6, dtype=np.int32),
        loss_mask=np.array([0, 1] * 3, bool), logprobs=np.zeros(6, np.float32),
        versions=np.zeros(6, np.int32), rewards=np.array([0, 1, 4], np.float32),
        group=np.zeros(3, np.int64), trajectory=np.array([5, 5, 6]), group_size=3 * one,
        group_mean=np.zeros(3, np.float32), group_std=np.zeros(3, np.float32),
        units=units_of(np.zeros(3, np.int64), np.array([5, 5, 6]), np.array([0.0, 1, 4]), one),
    )  # fmt: skip
    received = decode_batch(encode_batch(batch))
    assert isinstance(received, Batch) and received.units is not None
    assert received.units.turn.tolist() == [0, 1, 0]
    assert received.units.trajectory_reward.tolist() == [0.5, 0.5, 4]
    assert received.units.trajectory_mean.tolist() == [2.25] * 3
    assert received.units.token_mean.dtype == np.float32
    part = received.take(np.array([2, 1]))
    assert part.units is not None and part.units.turns.tolist() == [1, 2]
