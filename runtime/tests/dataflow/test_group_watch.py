"""Groups that teach a policy nothing are told about, once."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from astraflow_core.types import Verdict
from astraflow_runtime.dataflow.progress import RunState
from astraflow_runtime.dataflow.rows.group_watch import MANY_GROUPS


class NoVariance:
    def accept(self, group):
        return Verdict(float(np.ptp(group.rewards)) > 0, "no variance")


@pytest.fixture
def roomy(config):
    """A config under which no group is held back."""
    return lambda **changes: config(run__max_staleness=99, policy__batch_sequences=40, **changes)


def push(b, count, *rewards, **group):
    """Groups with these rewards each."""
    for _ in range(count):
        (task,) = b.lease(2)[0]
        b.push(task, rewards=rewards, **group)


def told(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def groups(b, key="equal_groups", policy="solver"):
    return getattr(b.flow.status().policies[policy], key)


@pytest.mark.parametrize("data", [(), (NoVariance,)])
def test_equal_rewards_are_reported_once_and_when_they_differ_again(bench, roomy, caplog, data):
    b = bench(roomy(), data=data).begin()
    push(b, MANY_GROUPS - 1, 0.0, 0.0)
    assert told(caplog) == []
    push(b, 40, 0.0, 0.0)
    assert groups(b) == MANY_GROUPS + 39
    (warning,) = told(caplog)
    assert warning.startswith(
        "the last 64 groups of policy 'solver' had equal rewards (all 0): an algorithm that compares rewards "
        "learns nothing from them."
    )
    assert "docs/does-not-learn.md" in warning
    push(b, 1, 0.0, 1.0)
    assert groups(b) == 0
    assert told(caplog)[1:] == [
        "rewards within a group of policy 'solver' differ again, after 103 groups with equal rewards"
    ]
    push(b, MANY_GROUPS, 0.0, 0.0)
    push(b, 1, 0.0, 1.0)
    assert len(told(caplog)) == 2


def test_one_group_with_a_difference_is_enough(bench, roomy, caplog):
    b = bench(roomy()).begin()
    for _ in range(2):
        push(b, MANY_GROUPS - 1, 1.0, 1.0)
        push(b, 1, 1.0, 0.0)
    assert told(caplog) == []


def test_rewards_that_differ_between_groups_alone_are_reported_as_such(bench, roomy, caplog):
    b = bench(roomy()).begin()
    push(b, MANY_GROUPS // 2, 0.1, 0.1)
    push(b, MANY_GROUPS // 2, 1.0, 1.0)
    (warning,) = told(caplog)
    assert "equal rewards (from 0.1 to 1 between groups)" in warning


def test_groups_of_one_are_not_reported(bench, roomy, caplog):
    b = bench(roomy(run__group_size=1)).begin()
    for _ in range(MANY_GROUPS + 5):
        (task,) = b.lease(1)[0]
        b.push(task, rewards=(0.0,))
    assert told(caplog) == []
    assert groups(b) == 0


def test_a_dataflow_that_was_started_again_counts_on_and_does_not_repeat_itself(
    bench, roomy, caplog, tmp_path
):
    b = bench(roomy(), journal=tmp_path).begin()
    push(b, MANY_GROUPS // 2, 0.5, 0.5)
    b.restart()
    push(b, MANY_GROUPS // 2, 0.5, 0.5)
    assert len(told(caplog)) == 1
    b.restart()
    push(b, 3, 0.5, 0.5)
    assert groups(b) == MANY_GROUPS + 3
    assert len(told(caplog)) == 1
    push(b, 1, 0.5, 0.0)
    b.restart()
    assert len(told(caplog)) == 2


def test_a_batch_that_does_not_fill_because_no_workflow_samples_its_policy_is_reported(
    bench, roomy, caplog
):
    b = bench(roomy(policies=("solver", "verifier"))).begin()
    push(b, MANY_GROUPS, 0.0, 1.0, policies=("solver",))
    (warning,) = told(caplog)
    assert warning == (
        "the last 64 groups left policy 'verifier' no row to train on, so its batch cannot fill: "
        '"no sequence of this policy" (64); see docs/does-not-learn.md'
    )
    assert groups(b, "fruitless_groups", "verifier") == MANY_GROUPS
    push(b, 1, 0.0, 1.0)
    assert groups(b, "fruitless_groups", "verifier") == 0


def test_groups_without_anything_to_train_are_reported_with_their_reasons(bench, roomy, caplog):
    b = bench(roomy()).begin()
    push(b, MANY_GROUPS - 4, 0.0, 1.0, trained=False)
    push(b, 10)
    (warning,) = told(caplog)
    assert '"no trained token" (60), "no trajectory" (4)' in warning


def test_a_run_whose_groups_leave_no_row_stops(bench, roomy):
    b = bench(roomy(run__max_fruitless_groups=3), data=(NoVariance,)).begin()
    push(b, 2, 0.0, 0.0)
    push(b, 1, 0.0, 1.0)
    push(b, 2, 1.0, 1.0)
    assert b.state.progress.state is RunState.RUNNING
    push(b, 1, 1.0, 1.0)
    assert b.state.progress.state is RunState.STOPPING
    reason = b.state.progress.reason
    for part in (
        "the last 3 groups left no row",
        "'solver': \"no variance\" (3)",
        "max_fruitless_groups",
    ):
        assert part in reason


def test_it_goes_on_while_one_policy_has_rows_or_if_the_bound_is_none(bench, roomy):
    b = bench(roomy(policies=("solver", "verifier"), run__max_fruitless_groups=3)).begin()
    push(b, 5, 0.0, 0.0, policies=("solver",))
    assert b.state.progress.state is RunState.RUNNING
    b = bench(roomy(run__max_fruitless_groups="none"), data=(NoVariance,)).begin()
    push(b, 5, 0.0, 0.0)
    assert b.state.progress.state is RunState.RUNNING
