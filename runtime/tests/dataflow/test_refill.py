"""Groups that a group deadline cut short: kept as they are, or completed by a task for the rest."""

from __future__ import annotations

import numpy as np
import pytest

from astraflow_core.errors import Refused, WireError
from astraflow_core.types import Verdict


class Watcher:
    """Sees groups as a policy under ``[prompts] data`` and one of a policy do."""

    def __init__(self):
        self.seen, self.ended = [], []

    def accept(self, group):
        self.seen.append(group.rewards.tolist())
        return Verdict(True)

    def on_admitted(self, prompt):
        self.ended.append("admitted")

    def on_ended(self, prompt, outcome):
        self.ended.append(outcome)

    def state_dict(self):
        return {"seen": self.seen, "ended": self.ended}

    def load_state_dict(self, state):
        raise AssertionError("a journal restores a policy by its calls")


@pytest.fixture
def run(bench, config, tmp_path):
    def made(refill=True, **changes):
        keys = {
            "run__group_size": 4,
            "run__max_staleness": 3,
            "run__group_deadline_s": 10,
            "run__refill_groups": refill,
            "policy__batch_sequences": 4,
            **changes,
        }
        b = bench(config(**keys), admission=[Watcher], data=[Watcher], journal=tmp_path)
        return b.begin("r0", "r1")

    return made


def watchers(b):
    chains = (b.state.admission.chain, b.state.streams["solver"].chain)
    return [chain.policy("Watcher").component for chain in chains]


@pytest.mark.parametrize("restarted", [False, True])
def test_the_rest_is_asked_for_and_the_whole_is_judged_once(run, restarted):
    b = run()
    (task,), _ = b.lease(4)
    assert (task.group_size, task.group_deadline_s) == (4, 10)
    assert b.push(task, rewards=(0.0,), late=3).status == "partial"
    if restarted:
        b.restart()
    assert [watcher.seen for watcher in watchers(b)] == [[], []]
    (rest,), _ = b.lease(3, "r1")
    assert (rest.prompt_id, rest.group_size) == (task.prompt_id, 3)
    assert rest.id != task.id
    assert b.push(rest, "r1", rewards=(1.0, 2.0), late=1, version=0).status == "partial"
    (last,), _ = b.lease(1, "r1")
    assert last.group_size == 1
    if restarted:
        b.restart()
    assert b.push(last, "r1", rewards=(3.0,)).status == "accepted"
    if restarted:
        b.restart()
    assert [watcher.seen for watcher in watchers(b)] == [[[0.0, 1.0, 2.0, 3.0]]] * 2
    assert watchers(b)[0].ended == ["admitted", "accepted"]
    tasks = b.flow.status().tasks
    assert (tasks.admitted, tasks.accepted, tasks.refilled) == (1, 1, 2)
    b.check()
    batch = b.next_batch(0)
    assert batch.rewards.tolist() == [0.0, 1.0, 2.0, 3.0]
    np.testing.assert_allclose(batch.group_mean, 1.5)
    assert len(set(batch.trajectory.tolist())) == 4
    # Token ids tell which trajectory of its push a sequence was.
    assert batch.tokens[batch.offsets[:-1]].tolist() == [0, 0, 100, 0]


def test_without_refill_the_policies_see_what_is_there(run):
    b = run(refill=False)
    (task,), _ = b.lease(4)
    assert b.push(task, rewards=(0.0, 1.0), late=2).status == "accepted"
    assert watchers(b)[0].seen == [[0.0, 1.0]]


def test_a_repeated_push_of_a_part_changes_nothing(run):
    b = run()
    (task,), _ = b.lease(4)
    b.push(task, rewards=(0.0,), late=3)
    (rest,), _ = b.lease(4)  # by the same RaaS, whose first push seemed lost to it
    b.restart()
    assert b.push(task, rewards=(0.0,), late=3).status == "duplicate"
    with pytest.raises(Refused, match="the task has ended: refilled"):
        b.push(task, "r1", rewards=(0.0,), late=3)
    assert b.push(rest, rewards=(1.0, 1.0, 1.0)).status == "accepted"
    b.check()


def test_the_last_attempt_is_judged_as_it_is(run):
    b = run(run__task_attempts=2)
    (task,), _ = b.lease(4)
    b.push(task, rewards=(0.0,), late=3)
    (rest,), _ = b.lease(4)
    assert b.push(rest, rewards=(1.0,), late=2).status == "accepted"
    assert watchers(b)[0].seen == [[0.0, 1.0]]
    b.restart().check()


def test_a_rest_that_fails_is_tried_again_and_then_set_aside(run):
    b = run(run__task_attempts=3)
    (task,), _ = b.lease(4)
    b.push(task, rewards=(0.0,), late=3)
    for _ in range(2):
        (rest,), _ = b.lease(4)
        assert rest.group_size == 3
        b.fail(rest)
    b.restart().check()
    assert watchers(b)[0].ended == ["admitted", "set_aside"]
    assert b.state.train.parts == []


def test_a_rest_has_no_more_trajectories_than_are_missing(run):
    b = run()
    (task,), _ = b.lease(4)
    b.push(task, rewards=(0.0,), late=3)
    (rest,), _ = b.lease(4)
    with pytest.raises(WireError, match="4 trajectories, 0 rejected and 0 late for a task of 3"):
        b.push(rest, rewards=(1.0,) * 4)


def test_parts_that_have_become_too_stale_are_dropped_row_by_row(run):
    b = run(run__max_staleness=1)
    (task,), _ = b.lease(4)
    b.push(task, rewards=(0.0, 1.0), late=2)
    (rest,), _ = b.lease(4)
    for version in range(2):
        (other,), _ = b.lease(4, "r1", serving=version)
        b.push(other, "r1", version=version)
        batch = b.next_batch(version)
        b.announce(version + 1)
        b.acknowledge(batch.id, version + 1)
    assert b.push(rest, rewards=(0.0, 1.0), version=1).status == "accepted"
    stream = b.state.streams["solver"]
    assert (stream.rows.stale, len(stream.buffer)) == (2, 2)
    b.restart().check()


def test_bodies_of_parts_are_kept_while_they_are_needed(run):
    b = run()
    (task,), _ = b.lease(4)
    b.push(task, rewards=(0.0,), late=3)
    assert b.state.segments_needed() == {0}
    b.restart()
    (rest,), _ = b.lease(4)
    b.push(rest, rewards=(1.0, 1.0, 1.0))
    batch = b.next_batch(0)
    b.announce(1)
    b.acknowledge(batch.id, 1)
    assert b.state.segments_needed() == set()
