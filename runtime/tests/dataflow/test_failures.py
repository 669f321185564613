"""Consecutive failed tasks: counted by RaaS, and the number that ends the run."""

from __future__ import annotations


def test_too_many_failures_in_a_row_end_the_run(bench, config):
    b = bench(config(run__max_consecutive_failures=3)).begin()
    for _ in range(3):
        b.fail(b.lease(free=2)[0][0], "reward 'x' raised ValueError: no number")
    assert b.state.progress.state == "failed"
    assert b.state.progress.reason == (
        "3 tasks failed in a row, none succeeded; last error: reward 'x' raised ValueError: no number (prompt p0)"
    )
    assert b.lease()[1].stop
    assert b.next_batch(0).ended
    b.check()


def test_a_raas_that_fails_is_set_aside_and_the_others_continue(bench, config):
    b = bench(
        config(run__max_consecutive_failures=3, run__task_attempts=100, raas__replicas=2)
    ).begin()
    b.register_raas("r1")
    for _ in range(3):
        task = b.lease(free=2, raas="r1")[0][0]
        b.fail(task, "the reward's server is not there", raas="r1")
    assert b.state.progress.state == "running"
    assert b.lease(free=2, raas="r1")[0] == []
    (shown,) = [each for each in b.flow.status().raas if each.name == "r1"]
    reason = "3 tasks failed in a row, none succeeded; last error: the reward's server is not there (prompt p0)"
    assert shown.set_aside == reason
    assert b.state.fleet.pool() == [b.state.fleet.get("r0")]
    task = b.lease(free=2)[0][0]
    assert b.push(task).status == "accepted"
    b.register_raas("r1")
    assert len(b.lease(free=2, raas="r1")[0]) == 1
    b.check()


def test_a_raas_stays_set_aside_when_the_dataflow_restarts(bench, config, tmp_path):
    b = bench(
        config(run__max_consecutive_failures=2, raas__replicas=2), journal=tmp_path / "journal"
    ).begin()
    b.register_raas("r1")
    for task in b.lease(free=4, raas="r1")[0]:
        b.fail(task, raas="r1")
    assert b.state.fleet.get("r1").set_aside
    b.restart()
    assert b.state.fleet.get("r1").set_aside
    assert b.lease(free=2, raas="r1")[0] == []


def test_a_success_of_a_task_that_it_still_holds_lets_a_raas_back_in(bench, config):
    b = bench(config(run__max_consecutive_failures=2, raas__replicas=2)).begin()
    b.register_raas("r1")
    first, second, third = b.lease(free=6, raas="r1")[0]
    b.fail(first, raas="r1")
    b.fail(second, raas="r1")
    assert b.lease(free=4, raas="r1")[0] == []
    b.push(third, raas="r1")
    assert b.lease(free=2, raas="r1")[0]


def test_the_run_ends_when_every_raas_is_set_aside(bench, config):
    b = bench(
        config(run__max_consecutive_failures=2, run__task_attempts=100, raas__replicas=2)
    ).begin()
    for _ in range(2):
        b.fail(b.lease(free=2)[0][0], "no such module")
    assert b.state.progress.state == "running", "the second RaaS of the run is not there yet"
    b.register_raas("r1")
    for _ in range(2):
        b.fail(b.lease(free=2, raas="r1")[0][0], "no such module", raas="r1")
    assert b.state.progress.state == "failed"
    assert b.state.progress.reason == (
        "all tasks fail on every RaaS: 'r0': 2 tasks failed in a row, none succeeded; last error: no such module "
        "(prompt p0); 'r1': 2 tasks failed in a row, none succeeded; last error: no such module (prompt p0)"
    )


def test_a_run_whose_last_good_raas_does_not_come_back_ends_and_says_why(bench, config):
    b = bench(config(run__max_consecutive_failures=2, run__task_attempts=100)).begin()
    b.register_raas("r1")
    for _ in range(2):
        b.fail(b.lease(free=2, raas="r1")[0][0], "no such module", raas="r1")
    for _ in range(70):
        b.renew([], raas="r1")
        b.pass_time(10)
    assert b.state.progress.state == "failed"
    assert "'r0' (gone), 'r1' (2 tasks failed in a row" in b.state.progress.reason


def test_an_evaluation_leaves_a_raas_that_is_set_aside(bench, config):
    b = bench(config(run__max_consecutive_failures=2, raas__replicas=2), evals={"held": 1}).begin()
    tasks, _ = b.lease(free=8)
    assert b.state.evaluations.active.host == "r0"
    b.register_raas("r1")
    b.renew([], raas="r1")
    for task in [task for task in tasks if not task.eval_set][:2]:
        b.fail(task)
    b.flow.watch.sweep()
    assert b.state.evaluations.active.host == "r1"


def test_a_success_between_resets_the_count(bench, config):
    b = bench(config(run__max_consecutive_failures=2)).begin()
    tasks, _ = b.lease()
    b.fail(tasks[0])
    b.push(tasks[1])
    b.fail(tasks[2])
    assert b.state.progress.state == "running"
