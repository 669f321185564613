"""A task that failed on a RaaS goes to another one first, and never waits long for it."""

from __future__ import annotations

import pytest

from astraflow_runtime.dataflow.tasks.elsewhere import ELSEWHERE_S


@pytest.fixture
def failed(bench, config, tmp_path):
    """Two RaaS that ask for tasks, and a task that failed on r0."""
    b = bench(config(run__task_attempts=5), journal=tmp_path).begin("r0", "r1")
    b.lease(0, "r1")
    b.task = b.lease(2, "r0")[0][0]
    b.fail(b.task, raas="r0")
    return b


def named(tasks):
    return [task.id for task in tasks]


def test_another_raas_gets_it(failed):
    b = failed
    assert b.task.id not in named(b.lease(2, "r0")[0])  # it gets the next prompt
    assert named(b.lease(2, "r1")[0]) == [b.task.id]
    b.fail(b.task, raas="r1")
    assert named(b.lease(2, "r0")[0]) == [b.task.id]  # it failed on both
    b.check()
    b.restart()


def test_it_comes_back_if_no_other_asks(failed):
    b = failed
    b.pass_time(ELSEWHERE_S - 0.1)
    assert b.task.id not in named(b.lease(2, "r0")[0])
    b.pass_time(0.1)
    assert named(b.lease(2, "r0")[0]) == [b.task.id]
    b.restart()


def test_it_comes_back_as_soon_as_no_other_is_there(failed):
    b = failed
    b.leave("r1")
    b.pass_time(0)
    assert named(b.lease(2, "r0")[0]) == [b.task.id]


@pytest.mark.parametrize("why", ["drained", "left", "set aside", "old", "silent"])
def test_those_that_get_no_tasks_are_not_waited_for(bench, config, why):
    b = bench(config(run__task_attempts=5)).begin("r0", "r1")
    if why != "old":
        b.lease(0, "r1")
    task = b.lease(2, "r0")[0][0]
    if why == "drained":
        b.drain("r1")
    elif why == "left":
        b.leave("r1")
    elif why == "set aside":
        b.state.fleet.get("r1").set_aside = "it failed everything"
    elif why == "silent":
        b.time[0] += 25
        b.renew([task.id], "r0")
        b.pass_time(0)
    b.fail(task, raas="r0")
    assert named(b.lease(2, "r0")[0]) == [task.id]


def test_a_lease_that_expired_counts_as_a_failure(bench, config):
    b = bench(config(run__lease_s=600, run__episode_deadline_s=1, run__deadline_s=1e4)).begin(
        "r0", "r1"
    )
    b.lease(0, "r1")
    task = b.lease(2, "r0")[0][0]
    b.time[0] += 602
    b.renew([task.id], "r0")
    b.lease(0, "r1")
    b.pass_time(0)
    assert b.state.train.get(task.id).attempts == 1
    assert task.id not in named(b.lease(2, "r0")[0])
    assert named(b.lease(2, "r1")[0]) == [task.id]


def test_it_wakes_who_waits_for_it_when_it_may_come_back(failed, monkeypatch):
    woken = []
    monkeypatch.setattr(failed.state.signals, "work", lambda: woken.append(True))
    failed.pass_time(1)
    assert not woken
    failed.pass_time(ELSEWHERE_S)
    assert woken


def test_an_evaluation_task_too(bench, config):
    b = bench(config(run__task_attempts=5, eval__every=1), evals={"held": 2}).begin("r0", "r1")
    b.lease(0, "r1")
    tasks = [task for task in b.lease(64, "r0")[0] if task.pinned]
    b.fail(tasks[0], raas="r0")
    again = [task for task in b.lease(64, "r0")[0] if task.pinned]
    assert tasks[0].id not in named(again)
    there = [task for task in b.lease(64, "r1")[0] if task.pinned]
    assert named(there) == [tasks[0].id]
