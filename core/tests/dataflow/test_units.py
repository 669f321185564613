from __future__ import annotations

import numpy as np


def test_statistics_are_over_the_whole_group_of_the_policy(bench, config):
    """Trajectories of three sequences; a batch holds four of the six that the solver has in a group."""
    b = bench(config(run__max_staleness=0, policy__batch_sequences=4)).begin()
    task = b.lease(free=2)[0][0]
    assert b.push(task, policies=("solver",) * 3, rewards=(0.0, 1.0)).status == "accepted"
    batch = b.next_batch(0)
    assert batch.trajectory.tolist() == [0, 0, 0, 1]
    units = batch.units
    assert units.turn.tolist() == [0, 1, 2, 0]
    assert units.turns.tolist() == [3] * 4
    assert units.trajectory_reward.tolist() == [0, 0, 0, 1]
    assert units.trajectories.tolist() == [2] * 4
    assert units.trajectory_mean.tolist() == units.token_mean.tolist() == [0.5] * 4
    np.testing.assert_allclose(units.trajectory_std, 2**-0.5, rtol=1e-6)
    assert units.trained_tokens.tolist() == [18] * 4
    np.testing.assert_allclose(units.token_std, 0.5 * (18 / 17) ** 0.5, rtol=1e-6)
    np.testing.assert_allclose(batch.group_std, 0.5 * (6 / 5) ** 0.5, rtol=1e-6)
