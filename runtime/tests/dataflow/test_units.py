from __future__ import annotations

import numpy as np

from astraflow_core.types import Group, Trajectory
from astraflow_core.types import Sequence as TokenSequence
from astraflow_wire.groups import encode_group


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


def test_rewards_of_steps_add_up_and_one_that_steps_share_counts_once(bench, config, tmp_path):
    def step(reward):
        trained = np.array([False, True])
        logprobs, versions = np.array([0, -0.5], np.float32), np.array([-1, 0], np.int32)
        return TokenSequence(
            "solver", np.arange(2, dtype=np.int32), trained, logprobs, versions, reward
        )

    b = bench(config(run__max_staleness=0, policy__batch_sequences=4), journal=tmp_path).begin()
    task = b.lease(free=2)[0][0]
    trajectories = (
        Trajectory((step(0.25), step(0.5), step(-0.125)), rewards={"solver": 9.0}),
        Trajectory((step(None), step(None), step(0.25)), rewards={"solver": 1.0}),
    )
    body = encode_group(Group(task.id, task.prompt_id, trajectories), "r0", incarnation=1)
    assert b.flow.intake.accept(body).status == "accepted"
    b.restart()
    batch = b.next_batch(0)
    assert batch.rewards.tolist() == [0.25, 0.5, -0.125, 1]
    assert batch.units.trajectory_reward.tolist() == [0.625] * 3 + [1.25]
    assert batch.units.trajectory_mean.tolist() == [0.9375] * 4


def test_rewards_that_are_equal_for_the_trainer_have_no_spread(bench, config):
    b = bench(config(run__max_staleness=0, policy__batch_sequences=2)).begin()
    task = b.lease(free=2)[0][0]
    assert b.push(task, rewards=(0.1 + 0.2, 0.3)).status == "accepted"
    batch = b.next_batch(0)
    assert batch.group_std.tolist() == batch.units.trajectory_std.tolist() == [0, 0]
    assert batch.group_mean.tolist() == batch.rewards.tolist()
