"""Statistics of groups over trajectories and over tokens, against loops."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from astraflow_runtime.dataflow.rows.statistics import units_of

sequence = st.tuples(st.integers(-8, 8).map(lambda x: x / 4), st.integers(0, 5), st.booleans())
groups = st.lists(
    st.lists(st.lists(sequence, min_size=1, max_size=4), min_size=1, max_size=4),
    min_size=1,
    max_size=4,
)


@given(groups=groups, seed=st.integers(0, 99))
def test_units_are_those_of_nested_loops(
    groups: list[list[list[tuple[float, int, bool]]]], seed: int
) -> None:
    def earned(turns: list[tuple[float, int, bool]]) -> float:
        """Own rewards add up; of those that share one it is the mean, whatever they say."""
        shared = [reward for reward, _, own in turns if not own]
        return sum(reward for reward, _, own in turns if own) + (np.mean(shared) if shared else 0)

    rows, expected = [], []
    number = 40
    for index, group in enumerate(groups):
        means = [earned(turns) for turns in group]
        tokens = [reward for turns in group for reward, count, _ in turns for _ in range(count)]
        for turns, mean in zip(group, means, strict=True):
            for turn, (reward, count, own) in enumerate(turns):
                rows.append((index + 7, number, reward, count, own))
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
    columns = (np.array([r[k] for r in rows])[order] for k in range(5))
    found = asdict(units_of(*columns))
    for name, values in found.items():
        want = [expected[place][name] for place in order]
        np.testing.assert_allclose(values, want, rtol=1e-6, atol=1e-6, err_msg=name)
