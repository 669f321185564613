"""Environments that fail: counted by kind, their prompts quarantined, and a run that stops when they fail too often."""

from __future__ import annotations

import random
import re

import pytest

from astraflow_runtime.dataflow.fleet.failures import WINDOW
from astraflow_wire.limits import MAX_FAILURE_KINDS


def lasting(config, **keys):
    """A run in which no RaaS is set aside and no task given up."""
    keys = {
        "run__max_consecutive_failures": 1000,
        "run__task_attempts": 1000,
        "run__max_staleness": 1000,
    } | keys
    return config(**keys)


def play(b, kinds):
    """One attempt after the other: it fails in the way of its kind, or succeeds if that is empty."""
    for kind in kinds:
        task = b.lease(free=2)[0][0]
        if kind:
            b.fail(task, f"environment 'maze' failed: {kind}", environment=kind)
        else:
            b.push(task)


def test_failures_are_counted_by_kind(bench, config):
    b = bench(lasting(config)).begin()
    play(b, ["timeout", "crashed", "", "timeout"])
    b.fail(b.lease(free=2)[0][0], "reward 'x' raised ValueError")
    status = b.flow.status()
    assert status.environment_failures == {"timeout": 2, "crashed": 1}
    assert status.tasks.accepted == 1
    assert b.state.progress.state == "running"
    b.check()


def test_kinds_beyond_the_most_that_are_counted_are_others(bench, config):
    b = bench(lasting(config, run__max_environment_failures=1.0)).begin()
    play(b, [f"kind_{i}" for i in range(MAX_FAILURE_KINDS + 3)])
    counted = b.flow.status().environment_failures
    assert len(counted) == MAX_FAILURE_KINDS + 1
    assert counted["other"] == 3


def test_too_many_end_the_run_with_a_diagnosis(bench, config):
    b = bench(lasting(config)).begin()
    half = WINDOW // 2
    play(b, ["", "timeout"] * half)
    assert b.state.progress.state == "running", "half of them may fail"
    play(b, ["crashed"])
    assert b.state.progress.state == "failed"
    assert re.fullmatch(
        rf"{half + 1} of the last {WINDOW} attempts of tasks failed in their environments, which is about 31% of the "
        r"episodes and "
        rf"more than \[run\] max_environment_failures = 0.3 allows: timeout {half}, crashed 1, on r0 {half + 1}; an attempt "
        r"fails when the first of its 2 episodes fails; last error: environment 'maze' failed: crashed \(prompt p\d+\)",
        b.state.progress.reason,
    )
    assert b.lease()[1].stop
    b.check()


@pytest.mark.parametrize("size", [1, 8, 16])
def test_a_tenth_of_the_episodes_may_fail_and_a_jump_may_not(bench, config, size):
    counter = bench(lasting(config, run__group_size=size)).begin().state.failures
    script = random.Random(size)

    def attempts(share):
        """Why the run ends while environments fail this share of the episodes."""
        for _ in range(4 * WINDOW):
            if not any(script.random() < share for _ in range(size)):
                counter.succeeded("r0")
            elif why := counter.failed("r0", "it hangs", "timeout"):
                return why
        return ""

    assert attempts(0.1) == ""
    assert attempts(0.6)


def test_failures_of_other_things_do_not_count(bench, config):
    b = bench(lasting(config)).begin()
    for _ in range(2 * WINDOW):
        b.fail(b.lease(free=2)[0][0], "the workflow raised")
    assert b.state.progress.state == "running"
    assert b.flow.status().environment_failures == {}


def prompts_of(b, count):
    """Prompts of the next tasks, all of which succeed."""
    found = []
    for _ in range(count):
        task = b.lease(free=2)[0][0]
        found.append(task.prompt_id)
        b.push(task)
    return found


def test_a_prompt_is_quarantined_after_its_last_attempt(bench, config):
    b = bench(lasting(config, run__task_attempts=2, prompts__shuffle=False)).begin()
    play(b, ["timeout", "crashed"])
    assert b.flow.status().quarantined == 1
    size = b.state.admission.cursor.size
    taken = prompts_of(b, 2 * size - 2)
    assert "p0" not in taken
    assert taken.count("p1") == 2
    b.check()


def test_a_prompt_on_which_something_else_failed_is_taken_again(bench, config):
    b = bench(lasting(config, run__task_attempts=2, prompts__shuffle=False)).begin()
    for _ in range(2):
        b.fail(b.lease(free=2)[0][0], "the workflow raised")
    assert b.flow.status().quarantined == 0
    assert "p0" in prompts_of(b, b.state.admission.cursor.size)


def test_a_restarted_dataflow_knows_them(bench, config, tmp_path):
    b = bench(lasting(config, run__task_attempts=2), journal=tmp_path / "journal").begin()
    play(b, ["timeout", "crashed", "", "network"])
    before = b.flow.status()
    b.restart()
    after = b.flow.status()
    assert (
        (after.environment_failures, after.quarantined)
        == (
            before.environment_failures,
            before.quarantined,
        )
        == ({"timeout": 1, "crashed": 1, "network": 1}, 1)
    )
    b.lease(free=2)


def test_a_run_of_quarantined_prompts_continues_and_says_so(bench, config, caplog):
    b = bench(lasting(config, run__task_attempts=1, run__max_environment_failures=1.0)).begin()
    size = b.state.admission.cursor.size
    play(b, ["timeout"] * size)
    assert b.flow.status().quarantined == size
    play(b, [""])
    assert f"because environments failed on them ({size} are quarantined)" in caplog.text


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_the_share_is_a_key(bench, config, share):
    b = bench(lasting(config, run__max_environment_failures=share)).begin()
    play(b, [""] * (WINDOW - 1) + ["timeout"])
    assert b.state.progress.state == ("failed" if share == 0 else "running")
