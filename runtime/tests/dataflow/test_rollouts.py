from __future__ import annotations

import numpy as np
import pytest

from astraflow_core.errors import Refused, WireError
from astraflow_core.types import Verdict
from astraflow_wire.model_files.model_limits import ModelLimits


def test_a_prompt_becomes_a_batch(bench, config):
    b = bench(config(run__max_staleness=0)).begin()
    tasks, _ = b.lease()
    assert [t.prompt_id for t in tasks] == ["p0", "p1"]  # 2 groups of 2 fill the batch of 4
    for number, task in enumerate(tasks):
        assert b.push(task, rewards=(0.0, 1.0 + number)).status == "accepted"
    batch = b.next_batch(0)
    assert (batch.id, batch.version, len(batch)) == ("solver-000000", 0, 4)
    assert batch.rewards.tolist() == [0, 1, 0, 2]
    assert batch.group.tolist() == [0, 0, 1, 1]
    assert batch.trajectory.tolist() == [0, 1, 2, 3]
    assert batch.group_mean.tolist() == [0.5, 0.5, 1.0, 1.0]
    np.testing.assert_allclose(batch.group_std, [2**-0.5] * 2 + [2**0.5] * 2, rtol=1e-6)
    first = [*range(5), *range(100, 105)]
    assert batch.tokens.tolist() == first * 2
    assert batch.loss_mask.tolist() == [False, False, True, True, True] * 4
    b.check()


def test_nothing_is_leased_before_every_policy_has_a_version(bench, config):
    b = bench(config(policies=("solver", "verifier")))
    b.register_trainers()
    b.register_raas()
    assert b.lease()[0] == []
    b.announce(0, "solver")
    assert b.lease()[0] == []
    b.announce(0, "verifier")
    assert len(b.lease()[0]) > 0


def test_no_more_is_under_way_than_the_bound_allows(bench, config):
    b = bench(config(run__max_staleness=2)).begin()
    tasks, _ = b.lease(free=1000)
    assert len(tasks) * 2 == 3 * 4
    assert b.lease(free=1000)[0] == []
    b.push(tasks[0])
    assert b.lease(free=1000)[0] == []  # what ran is buffered now
    b.push(tasks[1])
    assert b.next_batch(0) is not None
    assert b.lease(free=1000)[0] == []  # what was buffered is being trained now
    b.announce(1)
    b.acknowledge("solver-000000", 1)
    assert len(b.lease(free=1000, serving=1)[0]) == 2
    b.check()


def test_the_sequences_of_a_workflow_are_learned_from_groups(bench, config):
    b = bench(config(run__max_staleness=0, policy__batch_sequences=24)).begin()
    task = b.lease(free=2)[0][0]
    # A workflow whose trajectories have three sequences each.
    b.push(task, policies=("solver",) * 3)
    assert len(b.lease(free=1000)[0]) == 3  # 6 buffered, each task 6 more


def test_a_group_larger_than_a_batch_still_runs(bench, config):
    b = bench(config(run__group_size=8, run__max_staleness=0)).begin()
    tasks, _ = b.lease()
    assert len(tasks) == 1
    b.push(tasks[0])
    assert len(b.next_batch(0)) == 4
    b.announce(1)
    b.acknowledge("solver-000000", 1)
    assert b.next_batch(1) is None  # the other four were sampled by version 0
    assert b.state.streams["solver"].rows.stale == 4
    assert len(b.lease(serving=1)[0]) == 1
    b.check()


def test_synchronous_means_only_the_version_that_is_updated(bench, config):
    b = bench(config(run__max_staleness=0)).begin("r0", "r1")
    old = b.lease(free=2)[0][0]
    new = b.lease(free=2, raas="r1")[0][0]
    b.push(new, raas="r1")
    b.announce(1)
    answer = b.push(old)
    assert (answer.status, answer.reasons) == ("rejected", {"solver": "stale"})
    assert b.lease(serving=0)[0] == []  # it serves version 0 yet
    assert b.next_batch(1) is None
    assert b.state.streams["solver"].rows.stale == 2
    tasks, _ = b.lease(serving=1)
    for task in tasks:
        b.push(task, version=1)
    batch = b.next_batch(1)
    assert set(batch.versions[batch.loss_mask].tolist()) == {1}
    assert b.state.streams["solver"].staleness.seen == {0: 4}
    b.check()


def test_staleness_is_checked_again_when_the_batch_is_cut(bench, config):
    b = bench(config(run__max_staleness=1)).begin()
    tasks, _ = b.lease()
    b.push(tasks[0], version=0)
    for version in (1, 2):
        b.announce(version)
    b.push(tasks[1], version=2)
    b.push(tasks[2], version=(1, 2))
    batch = b.next_batch(2)
    assert batch.versions[batch.loss_mask].min() == 1
    assert b.flow.balance()["rows"]["solver"]["stale"] == 2
    b.check()


def test_a_raas_that_lags_gets_no_tasks_until_it_has_caught_up(bench, config):
    b = bench(config(run__max_staleness=1)).begin()
    b.announce(1)
    b.announce(2)
    assert b.lease(free=2, serving=0)[0] == []
    assert len(b.lease(free=2, serving=1)[0]) == 1
    b.register_raas("new")  # must have served the version that was current when the request came
    assert b.lease(free=2, raas="new", serving=1)[0] == []
    assert len(b.lease(free=2, raas="new", serving=2)[0]) == 1
    b.announce(3)
    # A batch of sequences is under way: more of version 2 would have their turn at version 4.
    assert b.lease(free=2, raas="new", serving=2)[0] == []
    assert len(b.lease(free=2, raas="new", serving=3)[0]) == 1


def test_a_raas_that_is_smaller_than_a_group_gets_one_at_a_time(bench, config):
    b = bench(config(run__group_size=4))
    b.begin()
    b.register_raas("small", capacity=2)
    assert b.lease(free=1, raas="small")[0] == []
    assert len(b.lease(free=2, raas="small")[0]) == 1


def test_pushes_are_recognised_and_late_ones_refused(bench):
    b = bench().begin("r0", "r1")
    task = b.lease(free=2)[0][0]
    assert b.push(task).status == "accepted"
    assert b.push(task).status == "duplicate"
    assert len(b.state.streams["solver"].buffer) == 2
    with pytest.raises(Refused, match="ended") as refused:
        b.push(task, raas="r1")
    assert refused.value.status == 409
    b.check()


def test_an_expired_lease_returns_and_its_push_is_too_late(bench):
    b = bench().begin("r0", "r1")
    task = b.lease(free=2)[0][0]
    b.pass_time(29)
    b.renew([], raas="r1")
    assert b.state.train.running == 1
    b.pass_time(2)
    assert (b.state.train.running, b.state.train.queued) == (0, 1)
    again = b.lease(free=2, raas="r1")[0][0]
    assert again.id == task.id
    with pytest.raises(Refused, match="'r1' now works on it"):
        b.push(task, raas="r0")
    assert b.push(again, raas="r1").status == "accepted"
    assert b.state.train.late == 1
    b.check()


def test_a_renewal_keeps_a_lease_and_names_what_is_revoked(bench):
    b = bench().begin()
    task = b.lease(free=2)[0][0]
    for _ in range(4):
        b.pass_time(20)
        assert b.renew([task.id]).revoked == []
    notices = b.renew([task.id, "train-77"])
    assert [(r.task, r.reason) for r in notices.revoked] == [
        ("train-77", "there is no task 'train-77' in this run")
    ]


def test_a_task_that_is_renewed_for_ever_ends_at_its_deadline(bench):
    b = bench().begin()
    task = b.lease(free=2)[0][0]
    for _ in range(20):
        b.pass_time(10)
        notices = b.renew([task.id])
        if notices.revoked:
            break
    assert "no result after" in notices.revoked[0].reason
    assert b.time[0] - 1000 <= 120 + 30 + 10


def test_a_prompt_that_kills_its_workflow_is_set_aside_and_named(bench, config):
    b = bench(config(run__task_attempts=2)).begin()
    task = b.lease(free=2)[0][0]
    b.fail(task, "segfault")
    again = b.lease(free=2)[0][0]
    assert again.id == task.id
    b.fail(again, "segfault again")
    assert b.state.train.set_aside == [{"task": task.id, "prompt": "p0", "error": "segfault again"}]
    assert b.lease(free=2)[0][0].prompt_id == "p1"
    b.check()


def test_a_raas_that_leaves_or_vanishes_gives_its_tasks_back(bench):
    b = bench().begin("r0", "r1")
    b.lease(free=2)
    b.leave()
    assert (b.state.train.queued, b.state.train.running) == (1, 0)
    task = b.lease(free=2, raas="r1")[0][0]
    b.pass_time(20)
    assert b.state.fleet.get("r1").health == "suspect"
    b.pass_time(11)
    assert b.state.fleet.get("r1").health == "gone"
    assert b.state.train.queued == 1
    with pytest.raises(Refused, match="must register") as refused:
        b.lease(raas="r1")
    assert refused.value.status == 404
    b.register_raas("r1")
    assert b.lease(free=2, raas="r1")[0][0].id == task.id


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 7}, "version 7; the newest announced version is 0"),
        ({"policies": ("judge",)}, "names policy 'judge'"),
        ({"rewards": (1.0,) * 3}, "3 trajectories, 0 rejected and 0 late for a task of 2"),
        ({"eval_set": "held_out"}, "belongs to eval set ''"),
        ({"rewards": (0.0, 1e30)}, "RaaS 'r0', sequence 1 of policy 'solver': reward is 1e[+]30"),
        (
            {"rewards": (0.0, 1.0), "length": 7},
            "sequence 0 .* length is 7; the context .* 6 tokens",
        ),
        ({"rewards": (0.0, 1.0), "length": 6}, "sequence 1 .* tokens has the id 105; .* below 105"),
    ],
)
def test_a_group_that_does_not_fit_its_task_is_malformed(bench, change, message):
    b = bench(limits={"solver": ModelLimits(105, 6)}).begin()
    task = b.lease(free=2)[0][0]
    with pytest.raises(WireError, match=message):
        b.push(task, **change)
    assert b.state.train.running == 1
    assert b.push(task).status == "accepted"


def test_a_refused_group_costs_its_raas_an_attempt_and_other_raas_nothing(bench):
    b = bench(limits={"solver": ModelLimits(105, 6)}).begin("r0", "r1")
    task = b.lease(free=2)[0][0]
    with pytest.raises(WireError, match="tokens has the id 105"):
        b.push(task, length=6)
    b.fail(task, "the dataflow refused it")
    again = b.lease(free=2, raas="r1")[0][0]
    assert again.id == task.id
    assert b.push(again, raas="r1").status == "accepted"
    assert b.state.progress.state == "running"
    b.check()


def test_a_group_without_trajectories_or_trained_tokens_is_rejected(bench):
    b = bench().begin()
    tasks, _ = b.lease()
    assert b.push(tasks[0], rewards=()).reasons == {"solver": "no trajectory"}
    assert b.push(tasks[1], trained=False).reasons == {"solver": "no trained token"}
    counted = b.flow.status().policies["solver"].rejected
    assert counted == {"no trajectory": 1, "no trained token": 1}
    assert b.flow.status().rejected == {"no trajectory": 1, "no trained token": 1}
    b.check()


class Odd:
    """Admits prompts of odd number."""

    def admit(self, prompt):
        return int(prompt.id[1:]) % 2 == 1


class Nobody:
    def admit(self, prompt):
        return False


def test_refused_prompts_are_skipped(bench):
    b = bench(admission=[Odd()]).begin()
    assert [t.prompt_id for t in b.lease()[0]] == ["p1", "p3", "p5", "p7"]
    assert b.flow.status().refused_prompts == {"Odd": 4}


def test_a_set_that_is_refused_whole_neither_spins_nor_stalls(bench):
    b = bench(admission=[Nobody()], prompts=1000).begin()
    calls = 0
    while not (tasks := b.lease(free=2)[0]):
        calls += 1
        assert b.flow.leasing.more_to_admit
    assert calls == 3  # 256 prompts a call, one forced after 1000
    assert len(tasks) == 1
    assert b.flow.status().tasks.forced == 1


class NoVariance:
    def accept(self, group):
        return Verdict(float(np.ptp(group.rewards)) > 0, "no variance")


def test_policies_judge_groups_before_they_are_buffered(bench, config):
    b = bench(config(run__max_staleness=0), data=[NoVariance()]).begin()
    tasks, _ = b.lease()
    assert b.push(tasks[0], rewards=(1.0, 1.0)).reasons == {"solver": "no variance"}
    assert len(b.lease()[0]) == 1  # another one takes its place
    status = b.flow.status()
    assert status.policies["solver"].recent_reward == 1.0
    assert status.rejected == {"no variance": 1}
    b.check()


class Broken:
    def accept(self, group):
        raise KeyError("zip")


def test_a_policy_that_raises_is_named(bench):
    b = bench(data=[Broken()]).begin()
    task = b.lease(free=2)[0][0]
    with pytest.raises(Exception, match="data policy 'Broken' raised KeyError in accept: 'zip'"):
        b.push(task)


class Newest:
    """Orders by youngest first."""

    def key(self, row):
        return -row.min_version


def test_a_key_orders_the_buffer(bench, config):
    b = bench(config(run__max_staleness=4), data=[Newest()]).begin()
    tasks, _ = b.lease()
    b.announce(1)
    for task, version in zip(tasks[:3], (0, 1, 1), strict=True):
        b.push(task, version=version)
    batch = b.next_batch(1)
    assert set(batch.versions[batch.loss_mask].tolist()) == {1}


class Replay:
    """Half of every batch after the first is what was served before."""

    def draw(self, count, fresh, kept, version):
        old = list(kept)[: count // 2]
        need = count - len(old)
        return [*fresh[:need], *old] if len(fresh) >= need else None


def test_rows_drawn_again_are_counted_once(bench, config):
    b = bench(config(run__max_staleness=1), data=[Replay()]).begin()
    tasks, _ = b.lease()
    for task in tasks:
        b.push(task)
    assert len(b.next_batch(0)) == 4
    b.announce(1)
    b.acknowledge("solver-000000", 1)
    batch = b.next_batch(1)
    assert len(batch) == 4
    b.check()
    b.announce(2)
    b.acknowledge(batch.id, 2)
    rows = b.flow.balance()["rows"]["solver"]
    assert (rows["trained"], b.state.streams["solver"].rows.replayed) == (6, 2)
    assert b.next_batch(2) is None  # what is kept is too stale by now
    b.check()


def test_a_call_of_one_raas_looks_at_no_other(bench, monkeypatch):
    """The cost of a lease, a renewal and a push must not grow with the number of RaaS."""
    made = bench().begin("r0", "r1")

    def everyone():
        raise AssertionError("all RaaS were looked at")

    for look in ("all", "live", "present"):
        monkeypatch.setattr(made.state.fleet, look, everyone)
    tasks, _ = made.lease()
    made.renew([task.id for task in tasks])
    assert made.push(tasks[0]).status == "accepted"
