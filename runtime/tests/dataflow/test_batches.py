from __future__ import annotations

import pytest

from astraflow_core.errors import Refused
from astraflow_runtime.dataflow.signals import NoSignals
from astraflow_wire.batches import encode_batch
from astraflow_wire.messages import RegisterTrainer, ReleaseBatches, TrainerFailed


def fill(b, version=0):
    for task in b.lease(serving=version)[0]:
        b.push(task, version=version)


def test_an_unacknowledged_batch_is_served_again_verbatim(bench):
    b = bench().begin()
    fill(b)
    first = b.next_batch(0)
    again = b.next_batch(0)
    assert first.id == again.id
    assert first.tokens.tolist() == again.tokens.tolist()
    with pytest.raises(Refused, match="not yet acknowledged"):
        b.announce(1)
        b.next_batch(1)
    assert b.acknowledge(first.id, 1).stop is False
    assert b.acknowledge(first.id, 1).stop is False  # said twice
    assert b.state.streams["solver"].updates == 1
    with pytest.raises(Refused, match="not being trained"):
        b.acknowledge("solver-000007", 1)
    b.check()


def come_back(b, updates):
    return b.flow.training.register(
        RegisterTrainer(policy="solver", pid=3, host="h", updates=(updates,))
    )


def same(left, right):
    return encode_batch(left) == encode_batch(right)


def test_a_trainer_that_comes_back_gets_the_batch_that_it_lost(bench):
    b = bench().begin()
    fill(b)
    lost = b.next_batch(0)
    answer = come_back(b, 0)
    assert (answer.highest_version, answer.updates) == (0, 0)
    b.announce(1)
    assert same(b.next_batch(1), lost)
    assert same(b.next_batch(1), lost)
    assert b.state.streams["solver"].staleness.seen == {0: 4}
    b.check()


def trained(b, count, first_version=0):
    """Make ``count`` updates; returns their batches."""
    batches = []
    for version in range(first_version, first_version + count):
        fill(b, version)
        batches.append(b.next_batch(version))
        b.announce(version + 1)
        b.acknowledge(batches[-1].id, version + 1)
    return batches


def test_batches_that_no_checkpoint_holds_are_served_again_in_order(bench, config):
    b = bench(config(checkpoint__every=3)).begin()
    batches = trained(b, 5)
    b.flow.training.release(ReleaseBatches(policy="solver", updates=3))
    fill(b, 5)
    batches.append(b.next_batch(5))
    stream = b.state.streams["solver"]
    tokens, staleness = stream.tokens_trained, dict(stream.staleness.seen)
    answer = come_back(b, 3)
    assert (answer.highest_version, answer.updates) == (5, 3)
    b.check()
    version = 6
    b.announce(version)
    for number, lost in enumerate(batches[3:]):
        assert same(b.next_batch(version), lost)
        if number == 1:  # killed once more, in the middle
            come_back(b, 4)
            version += 1
            b.announce(version)
            assert same(b.next_batch(version), lost)
        version += 1
        b.announce(version)
        b.acknowledge(lost.id, version)
    assert (stream.updates, stream.outstanding) == (6, None)
    assert stream.tokens_trained == tokens + 12
    assert stream.staleness.seen == staleness
    b.check()


def test_a_trainer_whose_batches_are_gone_is_refused(bench, config):
    b = bench().begin()
    trained(b, 1)
    with pytest.raises(
        Refused, match=r"restarted with 0 updates, but 1 were made.*checkpoint.* every"
    ):
        come_back(b, 0)
    b = bench(config(checkpoint__every=1)).begin()
    trained(b, 2)
    b.flow.training.release(ReleaseBatches(policy="solver", updates=2))
    with pytest.raises(Refused, match="batches are kept from update 2 on"):
        come_back(b, 1)
    with pytest.raises(Refused, match="restarted with 3 updates"):
        come_back(b, 3)
    b.check()


def test_a_request_names_the_newest_version(bench):
    b = bench().begin()
    with pytest.raises(Refused, match="the newest announced version is 0"):
        b.next_batch(1)
    with pytest.raises(Refused, match="no policy 'judge'"):
        b.next_batch(0, policy="judge")


def test_version_numbers_only_grow(bench):
    b = bench().begin()
    b.announce(2)
    b.announce(2)  # a repeated announcement
    with pytest.raises(Refused, match="must increase"):
        b.announce(1)


def test_several_updates_of_one_version(bench, config):
    b = bench(config(policy__publish_every=2, run__max_staleness=1)).begin()
    fill(b)
    for _ in range(2):
        batch = b.next_batch(0)
        assert batch.version == 0
        if batch.id == "solver-000001":
            b.announce(1)
        b.acknowledge(batch.id, batch.version + (batch.id == "solver-000001"))
    assert b.state.streams["solver"].updates == 2
    b.check()


def test_publishers_retain_what_is_served(bench):
    b = bench().begin("r0", "r1")
    b.lease(serving=0)
    b.lease(raas="r1", serving=0)
    assert b.announce(1) == [0]
    b.lease(serving=1)
    b.renew([], raas="r1", serving=1)
    assert b.announce(2) == [1]


def test_a_run_ends_after_the_updates_of_all_policies(bench, config):
    b = bench(config(policies=("a", "b"), run__steps=1, run__max_staleness=0)).begin()
    fill(b)
    batch = b.next_batch(0, "a")
    b.announce(1, "a")
    assert b.acknowledge(batch.id, 1, "a").stop is False
    assert b.next_batch(1, "a") is None  # the other policy trains yet
    batch = b.next_batch(0, "b")
    b.announce(1, "b")
    b.acknowledge(batch.id, 1, "b")
    assert b.state.progress.state == "finished"
    assert b.next_batch(1, "a").ended
    assert b.next_batch(1, "b").ended
    assert b.lease(serving=1)[1].stop
    assert not b.state.all_left
    for policy in ("a", "b"):
        b.flow.training.release(ReleaseBatches(policy=policy, updates=1))
    b.leave()
    assert b.state.all_left
    b.check()


def test_a_policy_that_is_done_takes_no_more_rows(bench, config):
    b = bench(config(policies=("a", "b"), run__steps=1, run__max_staleness=1)).begin()
    tasks, _ = b.lease()
    for task in tasks[:2]:
        b.push(task)
    batch = b.next_batch(0, "a")
    b.announce(1, "a")
    b.acknowledge(batch.id, 1, "a")
    answer = b.push(tasks[2])
    assert answer.status == "accepted"
    assert answer.reasons == {"a": "the policy has completed all its updates"}
    b.check()


def test_stopping_lets_trainers_finish_their_step(bench):
    b = bench().begin()
    tasks, _ = b.lease()
    for task in tasks[:-1]:
        b.push(task)
    batch = b.next_batch(0)
    b.state.stop("enough")
    assert b.state.progress.state == "stopping"
    assert b.renew([tasks[-1].id]).stop
    b.announce(1)
    assert b.acknowledge(batch.id, 1).stop is True
    assert (b.state.progress.state, b.state.progress.reason) == ("stopped", "enough")
    with pytest.raises(Refused, match="the run ends: enough"):
        b.push(tasks[-1])
    b.check()


def test_a_failed_trainer_fails_the_run_with_its_error(bench):
    b = bench().begin()
    b.flow.training.failed(
        TrainerFailed(policy="solver", error="loss is NaN", batch="solver-000000")
    )
    assert b.state.progress.state == "failed"
    assert b.state.progress.reason == "the trainer of 'solver' failed: loss is NaN"
    assert not b.state.progress.users_mistake
    b.state.stop("later")
    assert b.state.progress.state == "failed"


def test_a_silent_trainer_is_left_out_and_its_oldest_rows_go(bench, config):
    b = bench(config(policies=("a", "b"), run__max_staleness=0)).begin()
    fill(b)
    b.next_batch(0, "a")
    b.announce(1, "a")
    b.acknowledge("a-000000", 1, "a")
    serving = {"a": 1, "b": 0}
    assert b.lease(serving=serving)[0] == []  # b has a whole batch, which no trainer requests
    for _ in range(13):
        b.pass_time(10)
        b.renew([])
    b.flow.training.register(RegisterTrainer(policy="a", pid=2, host="h", updates=(1,)))
    tasks, _ = b.lease(serving=serving)
    assert len(tasks) == 2
    for task in tasks:
        b.push(task, policies=("b",), version=0)
    assert b.flow.balance()["rows"]["b"]["buffered"] == 8
    b.pass_time(1)
    rows = b.flow.balance()["rows"]["b"]
    assert (rows["buffered"], rows["evicted"]) == (4, 4)
    b.check()


def test_who_waits_for_tasks_is_woken_once_a_silent_trainer_holds_no_one_up(bench, config):
    class Woken(NoSignals):
        times = 0

        def work(self):
            self.times += 1

    woken = Woken()
    b = bench(config(policies=("a", "b"), run__max_staleness=0), signals=woken).begin()
    fill(b)
    b.next_batch(0, "a")
    b.announce(1, "a")
    b.acknowledge("a-000000", 1, "a")
    serving = {"a": 1, "b": 0}
    for _ in range(12):  # of 120 s
        b.pass_time(9.9)
        b.renew([])
        b.announce(1, "a")
    assert b.lease(serving=serving)[0] == []
    before = woken.times
    b.pass_time(2)
    assert woken.times == before + 1
    assert len(b.lease(serving=serving)[0]) == 2
    before = woken.times
    b.pass_time(2)
    assert woken.times == before


def test_a_run_without_raas_or_trainer_fails_at_the_deadline(bench):
    b = bench()
    b.register_trainers()
    b.pass_time(301)
    assert "no version was announced by the trainer of 'solver'" in b.state.progress.reason

    b = bench()
    b.register_trainers()
    b.announce(0)
    b.pass_time(301)
    assert b.state.progress.reason.startswith("no RaaS has reported for 301 s")

    b = bench().begin()
    b.lease()
    b.pass_time(599)
    assert b.state.progress.state == "running"
    (wait,) = [wait for wait in b.flow.waits() if wait.for_whom == "r0"]
    assert (wait.since_s, wait.until_s) == (599, 1)
    b.pass_time(1)
    assert b.state.progress.reason == "no RaaS has reported for 600 s; known: 'r0' (gone)"


@pytest.mark.parametrize("with_batch", [True, False])
def test_a_trainer_that_stays_silent_is_named_and_fails_the_run_in_the_end(bench, with_batch):
    b = bench().begin()
    fill(b)
    b.next_batch(0)
    if not with_batch:
        b.announce(1)
        b.acknowledge("solver-000000", 1)
    for _ in range(59):
        b.pass_time(10)
        b.renew([])
    assert b.state.progress.state == "running"
    waits = [wait for wait in b.flow.waits() if wait.for_whom == "trainer solver"]
    (wait,) = [wait for wait in waits if wait.who == "dataflow"]
    assert (wait.since_s, wait.until_s) == (590, 10)
    b.pass_time(10)
    assert "the trainer of 'solver' was silent for 600 s" in b.state.progress.reason


def test_a_raas_and_a_trainer_that_come_back_are_welcome(bench):
    b = bench().begin()
    tasks, _ = b.lease()
    b.pass_time(500)
    assert b.flow.status().raas[0].state == "gone"
    b.register_raas("r0")
    b.state.trainers["solver"].heard(b.time[0])
    b.pass_time(1)
    assert b.state.progress.state == "running"
    again, _ = b.lease()
    assert {task.id for task in again} == {task.id for task in tasks}
    assert not [wait for wait in b.flow.waits() if wait.what.startswith("a heartbeat")]
    b.check()


def test_a_raas_that_never_loads_new_weights_ends_the_run_with_the_reason(bench, config):
    b = bench(config(run__max_staleness=0)).begin()
    fill(b)
    b.next_batch(0)
    b.announce(1)
    b.acknowledge("solver-000000", 1)
    for _ in range(62):
        b.pass_time(10)
        b.renew([], serving=0)
        b.state.trainers["solver"].heard(b.time[0])
    assert "no task could be leased" in b.state.progress.reason
    assert "'r0' serves {'solver': 0}" in b.state.progress.reason


def test_the_reward_of_a_step_is_that_before_the_policies(bench):
    b = bench().begin()
    tasks, _ = b.lease()
    b.push(tasks[0], rewards=(0.0, 1.0))
    b.push(tasks[1], rewards=(1.0, 1.0))
    b.next_batch(0)
    b.announce(1)
    b.acknowledge("solver-000000", 1)
    facts = b.flow.status().policies["solver"]
    assert (facts.reward, facts.trained_reward) == (0.75, 0.75)
    assert facts.metrics == {"loss": 0.5}
