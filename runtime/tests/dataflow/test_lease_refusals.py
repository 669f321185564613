"""Why a RaaS gets no task: the displayed reason is the one that decided."""

from __future__ import annotations

from at_most import AtMost

from astraflow_runtime.dataflow.tasks.lease_refusals import lease_refusal


class Odd:
    """Refuses every prompt."""

    def admit(self, prompt):
        return False


def waiting(b, free=64, raas="r0", serving=0):
    """The reason in the view of waits, for a RaaS that requested a task and got none."""
    assert b.lease(free, raas, serving)[0] == []
    b.state.fleet.get(raas).waiting_since = b.time[0]
    (wait,) = [wait for wait in b.flow.waits() if wait.who == raas]
    assert lease_refusal(b.state, b.state.fleet.get(raas), free)() == (
        wait.for_whom,
        wait.what,
    )
    return wait.for_whom, wait.what


def test_a_data_policy_that_holds_prompts_back_is_named(bench, config):
    b = bench(config(run__max_staleness=8), admission=[AtMost]).begin()
    task, _ = b.lease(64)[0]
    assert waiting(b) == (
        "data policy 'AtMost'",
        "it admits no new prompt until some running ones end",
    )
    assert not b.flow.leasing.work_available()
    b.fail(task)  # a task that waits in the queue was admitted before
    assert [again.id for again in b.lease(64)[0]] == [task.id]


def test_places_that_the_next_task_needs_and_those_that_are_free_are_reported(bench, config):
    b = bench(config(run__group_size=4, policy__batch_sequences=8)).begin()
    b.register_raas("r0", capacity=6)
    assert len(b.lease(6)[0]) == 1
    for free in (2, 3):
        assert waiting(b, free=free) == (
            "tasks of r0",
            f"too few free slots: the next task needs 4, and {free} of 6 are free",
        )
    assert b.flow.leasing.work_available()  # for another RaaS
    b.register_raas("small", capacity=2)
    assert waiting(b, free=1, raas="small")[1].startswith(
        "too few free slots: the next task needs 2,"
    )
    assert b.lease(2, "small")[0]


def test_what_is_left_of_a_group_needs_only_its_own_places(bench, config):
    b = bench(config(run__group_size=4, run__group_deadline_s=5.0, run__refill_groups=True)).begin()
    (task,) = b.lease(4)[0]
    b.push(task, rewards=(0.0, 1.0, 0.0), late=1)
    assert waiting(b, free=0)[1].startswith("too few free slots: the next task needs 1,")
    assert b.lease(1)[0][0].group_size == 1


def test_at_the_bound_each_trainer_is_named_with_its_count(bench, config):
    b = bench(config(policies=("a", "b"), run__max_staleness=0)).begin()
    b.lease(4)
    assert waiting(b) == (
        "trainer a, trainer b",
        "the staleness bound allows no more running sequences: 4 of 4 for a, 4 of 4 for b",
    )
    assert not b.flow.leasing.work_available()


def test_a_raas_that_is_behind_is_notified_of_a_lower_bound(bench, config):
    b = bench(config()).begin("r0", "r1")
    b.lease(4)
    b.announce(1)
    whom, what = waiting(b, raas="r1")
    assert whom == "trainer solver"
    assert what == (
        "the staleness bound allows no more running sequences: 4 of 4 for solver "
        "(one batch less for each version that it is behind: solver by 1)"
    )
    assert b.flow.leasing.work_available()  # for one that serves version 1
    assert b.lease(4, "r1", serving=1)[0]


def test_versions_that_are_too_old_or_not_there_yet_are_distinguished(bench, config):
    b = bench(config(run__max_staleness=2)).begin()
    for version in (1, 2, 3):
        b.announce(version)
    assert waiting(b, serving=0) == (
        "weights",
        "it is behind the newest versions (solver by 3); 2 are allowed",
    )
    b.register_raas("late")
    assert waiting(b, raas="late", serving=2) == (
        "weights",
        "it does not yet serve the version that was newest when it registered: version 3 of solver",
    )


def test_a_raas_that_leaves_or_was_set_aside_gets_nothing(bench, config):
    b = bench(config(run__max_consecutive_failures=2, run__max_staleness=8)).begin("r0", "r1")
    b.push(b.lease(2, "r1")[0][0], "r1")
    b.drain("r1")
    assert waiting(b, raas="r1") == (
        "run",
        "it is draining: it gets no new tasks and leaves after its running ones",
    )
    for _ in range(2):
        b.fail(b.lease(2)[0][0], "no such file", fatal=True)
    whom, what = waiting(b)
    assert whom == "a restart of r0" and "it was set aside: " in what and "no such file" in what


def test_what_holds_everybody_back_is_reported_first(bench, config):
    b = bench(config(checkpoint__every=1, run__max_staleness=4))
    b.register_raas("r0")
    assert waiting(b) == ("run", "the run is starting")
    b.begin()
    for update in range(4):
        b.update(update)
    whom, what = waiting(b, free=0, serving=4)
    assert whom == "disk space for new tasks" and "saved no checkpoint for 4 updates" in what


def test_without_a_trainer_no_one_gets_a_task(bench, config):
    b = bench(config()).begin()
    b.pass_time(b.state.config.run.deadline_s + 1, sweep=False)
    assert waiting(b) == ("trainers", "no trainer is taking batches")
    assert not b.flow.leasing.work_available()


def test_prompts_that_are_refused_one_after_the_other_are_counted(bench, config):
    b = bench(config(), prompts=1000, admission=[Odd]).begin()
    assert b.lease(2)[0] == [] and b.flow.leasing.more_to_admit
    b.state.fleet.get("r0").waiting_since = b.time[0]
    (wait,) = [wait for wait in b.flow.waits() if wait.who == "r0"]
    assert (wait.for_whom, wait.what) == (
        "a prompt",
        "the data policies refused the last 256",
    )
