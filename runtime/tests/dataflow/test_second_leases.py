"""The last tasks of a batch are leased a second time, to a faster RaaS; the first result counts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow_core.errors import Refused
from astraflow_core.types import Batch
from astraflow_runtime.cli.trace import _group
from astraflow_runtime.dataflow.fleet.notices import has_notices
from astraflow_runtime.dataflow.journal.tracing import Trace
from astraflow_runtime.dataflow.journal_reader import JournalReader
from astraflow_runtime.dataflow.tasks.second_leases import GAIN, remaining_s, second_s
from astraflow_runtime.launch.tracking.prompt_spans import PromptSpans

SLOW_S, FAST_S = 100.0, 10.0


@pytest.fixture
def waiting(bench, config, tmp_path):
    """A batch of two groups waits for the one that r0, slow, has; r1, fast, is free. The staleness bound allows no more."""

    def make(slow_s=SLOW_S, fast_s=FAST_S, **changes):
        changes = {"run__max_staleness": 0, "run__lease_s": 300.0, **changes}
        b = bench(config(**changes), journal=tmp_path / "journal").begin("r0", "r1")
        (task,) = b.lease(2, "r0")[0]
        (other,) = b.lease(2, "r1")[0]
        b.pass_time(fast_s)
        b.push(other, "r1")
        b.pass_time(slow_s - fast_s)
        b.push(task, "r0")
        batch = b.next_batch(0)
        assert isinstance(batch, Batch)
        b.announce(1)
        b.acknowledge(batch.id, 1)
        (task,) = b.lease(2, "r0", serving=1)[0]
        (other,) = b.lease(2, "r1", serving=1)[0]
        b.pass_time(fast_s)
        b.push(other, "r1", version=1)
        return b, task

    return make


def tasks(b):
    return b.flow.status().tasks


def test_a_faster_raas_gets_the_task_and_the_first_result_counts(waiting):
    b, task = waiting()
    (again,), _ = b.lease(2, "r1", serving=1)
    assert again == task
    assert b.lease(2, "r1", serving=1)[0] == []  # once
    assert (tasks(b).leased_again, tasks(b).second_won, tasks(b).running) == (1, 0, 1)
    assert b.state.train.in_flight == {"solver": 2.0}
    (wait,) = [wait for wait in b.flow.waits() if wait.who == f"task {task.id}"]
    assert wait.for_whom == "r0 or r1" and wait.since_s == FAST_S and wait.until_s > 0
    b.restart().check()
    b.renew([task.id], "r1", serving=1)
    assert b.push(task, "r1", version=1).status == "accepted"
    (revoked,) = b.renew([task.id], "r0", serving=1).revoked
    assert revoked.task == task.id
    with pytest.raises(Refused, match="the task has ended: accepted"):
        b.push(task, "r0", version=1)
    assert b.push(task, "r1", version=1).status == "duplicate"
    assert (tasks(b).second_won, tasks(b).accepted, tasks(b).late) == (1, 4, 1)
    batch = b.next_batch(1)
    assert isinstance(batch, Batch) and len(batch) == 4
    b.check()
    b.restart()


def test_the_other_end_is_notified_at_once(waiting):
    b, task = waiting()
    b.lease(2, "r1", serving=1)
    b.push(task, "r0", version=1)
    assert has_notices(b.state, b.state.fleet.get("r1"))
    (revoked,) = b.lease(2, "r1", serving=1)[1].revoked
    assert (revoked.task, revoked.reason) == (task.id, "'r0' was first")
    assert tasks(b).second_won == 0


@pytest.mark.parametrize("first", ["r0", "r1"])
@pytest.mark.parametrize("how", ["fails", "leaves", "is gone", "is overdue", "comes again"])
def test_while_the_other_goes_on_a_lease_that_ends_costs_nothing(waiting, first, how):
    b, task = waiting(run__task_attempts=1, run__episode_deadline_s=50.0)
    b.lease(2, "r1", serving=1)
    left = {"r0": "r1", "r1": "r0"}[first]
    record = b.state.train.get(task.id)
    if how == "fails":
        b.fail(task, "boom", first)
    elif how == "leaves":
        b.leave(first)
    elif how == "is gone":
        b.state.raas_gone(first, "it was silent")
    elif how == "is overdue":
        b.state.overdue(b.state.train, record, first, "it returned nothing")
    else:
        b.register_raas(first)
    assert [lease.raas for lease in record.leases] == [left]
    assert (tasks(b).running, tasks(b).queued, tasks(b).set_aside) == (1, 0, 0)
    b.restart().check()
    b.renew([task.id], left, serving=1)
    assert b.push(task, left, version=1).status == "accepted"
    b.check()


def test_a_failure_for_good_ends_both(waiting):
    b, task = waiting()
    b.lease(2, "r1", serving=1)
    b.fail(task, "too long", "r1", fatal=True)
    assert (tasks(b).failed, tasks(b).running) == (1, 0)
    assert [each.task for each in b.renew([], "r0", serving=1).revoked] == [task.id]
    b.check()
    b.restart()


@pytest.mark.parametrize(
    ("slow_s", "changes"),
    [
        (FAST_S, {}),  # of one pace
        (2 * FAST_S, {}),  # half of the time is over, and the second would take as long as is left
        (SLOW_S, {"run__second_leases": 0}),
        (SLOW_S, {"run__max_staleness": 1}),  # another task is to be had
    ],
)
def test_no_second_lease_that_does_not_shorten_the_wait(waiting, slow_s, changes):
    b, task = waiting(slow_s, **changes)
    assert task.id not in [each.id for each in b.lease(2, "r1", serving=1)[0]]
    assert tasks(b).leased_again == 0


def test_neither_old_weights_nor_too_few_slots(waiting):
    b, _ = waiting()
    assert b.lease(2, "r1", serving=0)[0] == []
    assert b.lease(1, "r1", serving=1)[0] == []


def test_the_tasks_of_a_silent_raas_of_the_same_pace(waiting):
    b, task = waiting(FAST_S, run__lease_s=30.0)
    b.pass_time(5)
    b.renew([], "r1", serving=1)
    b.pass_time(6)
    assert b.state.fleet.get("r0").health == "suspect"
    assert [each.id for each in b.lease(2, "r1", serving=1)[0]] == [task.id]


def test_a_raas_that_waits_is_woken(waiting):
    woken = []
    b, _ = waiting()
    b.state.fleet.get("r1").set_idle_slots(2, b.time[0])
    b.state.signals.raas = woken.append
    b.pass_time(1)
    assert woken == ["r1"]


def test_the_journal_records_both_leases(waiting, tmp_path):
    b, task = waiting()
    b.lease(2, "r1", serving=1)
    b.pass_time(5)
    b.push(task, "r1", version=1)
    trace, spans = Trace(3, group=task.id), PromptSpans("run", 1.0)
    JournalReader(tmp_path / "journal").feed(trace, spans)
    story = trace.groups[task.id]
    assert [(each.raas, each.second, each.ended) for each in story.attempts] == [
        ("r0", False, "'r1' was first"),
        ("r1", True, "pushed"),
    ]
    lines = [line.strip() for line in _group(story)][:3]
    assert [line.split(" ", 1)[1].strip() for line in lines] == [
        "r0 has it",
        "r1, as the second, rolls it out, 5.00 s",
        "ended without a result: 'r1' was first",
    ]
    assert story.state == "accepted" and len(story.shares[0].rows) == 2
    assert not trace.leases.held and not trace.leases.second
    (opened,) = [each for each in spans._open.values() if each.task == task.id]
    leases = [
        each["attributes"]["astraflow.raas"] for each in opened.spans if each["name"] == "lease"
    ]
    assert leases == ["r0", "r1"]


def test_what_the_rule_expects_is_the_mean_of_what_comes():
    """Groups take as long as their answers are, times the pace of the RaaS: with answers drawn anew, the second is first
    as often as the two expectations say, and hardly depends on how long the answer of the first is."""
    rng = np.random.default_rng(0)
    answers = rng.gamma(8.0, 1.0, (2, 20_000))
    pace, own = 10.0, 1.0
    age = 12.0
    holder, second = pace * answers[0], age + own * answers[1]
    still = holder > age
    assert GAIN * second_s(age, pace * 8, own * 8) < remaining_s(age, pace * 8)
    assert np.mean(holder[still] > second[still]) > 0.99
    trained = np.where(second < holder, answers[1], answers[0])
    assert abs(trained[still].mean() / answers.mean() - 1) < 0.01
    # Of one pace the second would win by being short; the rule refuses that at any age.
    assert all(GAIN * second_s(a, 8.0, 8.0) >= remaining_s(a, 8.0) for a in np.linspace(0, 80, 50))


@given(
    group_s=st.floats(1e-3, 1e4),
    holder_s=st.floats(1e-3, 1e4),
    age_s=st.floats(0.0, 1e5),
)
def test_no_task_is_passed_over_that_another_would_finish_sooner(
    group_s: float, holder_s: float, age_s: float
) -> None:
    """The search leaves out RaaS whose mean is at most ``GAIN`` times that of who asks: none of their tasks could be chosen."""
    if second_s(age_s, holder_s, group_s) * GAIN < remaining_s(age_s, holder_s):
        assert holder_s > GAIN * group_s
