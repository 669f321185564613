"""A dataflow that died continues from its journal as if nothing had been."""

from __future__ import annotations

import pytest

from astraflow_core.errors import Refused, RunFailed
from astraflow_core.types import Verdict
from astraflow_runtime.dataflow.journal.append_file import AppendFile
from astraflow_runtime.dataflow.progress import RunState
from astraflow_testing.small_disk import largest_file
from astraflow_wire.messages import RegisterTrainer, ReleaseBatches


def test_raas_and_trainer_continue_with_what_they_hold(bench, tmp_path):
    b = bench(journal=tmp_path).begin("r0", "r1")
    mine, theirs = b.lease(4, "r0")[0], b.lease(2, "r1")[0]
    b.push(mine[0])
    b.restart()
    assert b.renew([mine[1].id], "r0").revoked == []
    assert b.push(mine[0]).status == "duplicate"
    assert b.push(mine[1]).status == "accepted"
    assert b.push(theirs[0], "r1").status == "accepted"
    batch = b.next_batch(0)
    b.restart()
    assert b.next_batch(0).id == batch.id
    b.announce(1)
    b.restart()
    b.acknowledge(batch.id, 1)
    b.restart()
    b.acknowledge(batch.id, 1)  # its reply was lost
    assert b.state.streams["solver"].updates == 1
    b.check()


def test_a_lease_without_renewals_expires_after_its_whole_time(bench, tmp_path):
    b = bench(journal=tmp_path).begin()
    b.lease(2)
    b.pass_time(29)
    b.restart()
    b.pass_time(29)
    assert b.state.train.running == 1
    b.pass_time(2)
    assert (b.state.train.running, b.state.train.queued) == (0, 1)
    b.restart()
    assert b.state.fleet.get("r0").health == "gone"


def test_an_episode_that_takes_too_long(bench, config, tmp_path):
    b = bench(config(run__episode_deadline_s=5.0), journal=tmp_path).begin()
    (task, *_), _ = b.lease(2)
    for _ in range(4):
        b.pass_time(10, sweep=False)
        b.renew([task.id])
    b.pass_time(0)
    assert b.state.train.get(task.id).attempts == 1
    b.restart()
    assert b.state.train.get(task.id).attempts == 1


def test_rows_evicted_for_a_silent_trainer(bench, config, tmp_path):
    b = bench(config(run__deadline_s=50.0), journal=tmp_path).begin()
    for task in b.lease()[0]:
        b.push(task, policies=("solver", "solver"))
    assert len(b.state.streams["solver"].buffer) == 16
    for _ in range(6):
        b.pass_time(10, sweep=False)
        b.renew([])
    b.pass_time(0)
    assert len(b.state.streams["solver"].buffer) == 8
    b.restart()
    assert len(b.state.streams["solver"].buffer) == 8


def test_a_run_that_is_started_again(bench, config, tmp_path):
    b = bench(config(checkpoint__every=1), journal=tmp_path, evals={"held": 1}).begin()
    for task in b.lease()[0]:
        if task.eval_set:
            b.push(task, rewards=[1.0])
        else:
            b.push(task)
    first = b.next_batch(0)
    b.announce(1)
    b.acknowledge(first.id, 1)
    second = b.next_batch(1)
    assert second is not None
    b.restart(resumed=True)
    assert b.state.train.running == 0
    with pytest.raises(Refused, match="must register"):
        b.lease()
    assert b.register_raas("new").announcements == []  # no RaaS serves these versions any longer
    hello = RegisterTrainer(policy="solver", pid=5, host="h", updates=(0,))
    answer = b.flow.training.register(hello)
    assert (answer.highest_version, answer.updates) == (1, 0)
    b.announce(2)
    assert [m.version for m in b.renew([], "new", serving=-1).announcements] == [2]
    assert b.next_batch(2).id == first.id
    b.announce(3)
    b.acknowledge(first.id, 3)
    again = b.next_batch(3)
    assert (again.id, again.versions.tolist()) == (second.id, second.versions.tolist())
    b.check()


def test_the_oldest_state_that_fits_is_taken(bench, config, tmp_path):
    b = bench(config(checkpoint__every=2), journal=tmp_path).begin()
    for update in range(3):
        b.update(update)
    b.flow.training.release(ReleaseBatches(policy="solver", updates=2))
    hello = RegisterTrainer(policy="solver", pid=5, host="h", updates=(0, 2, 4))
    assert b.flow.training.register(hello).updates == 2  # 4 is of a time that the journal lost
    with pytest.raises(Refused, match="restarted with 0 or 4 updates, but 2 were made"):
        b.flow.training.register(RegisterTrainer(policy="solver", pid=5, host="h", updates=(0, 4)))


def test_a_run_that_was_stopped_continues_from_the_state_before_the_last(bench, config, tmp_path):
    b = bench(config(checkpoint__every=2), journal=tmp_path).begin()
    for update in range(4):
        b.update(update)
    b.flow.training.release(ReleaseBatches(policy="solver", updates=2))
    b.state.stop("Ctrl-C")
    assert b.next_batch(4).ended
    b.leave()
    assert not b.state.all_left
    b.flow.training.release(ReleaseBatches(policy="solver", updates=2, last=True))
    assert b.state.all_left
    b.restart()
    assert b.state.trainers["solver"].left
    b.restart(resumed=True)
    assert not b.state.trainers["solver"].left
    with pytest.raises(Refused, match="Restore a valid checkpoint of one of these updates"):
        b.flow.training.register(RegisterTrainer(policy="solver", pid=5, host="h", updates=(0,)))
    hello = RegisterTrainer(policy="solver", pid=5, host="h", updates=(0, 2))  # 4 is damaged
    assert b.flow.training.register(hello).updates == 2
    b.announce(5)
    assert b.next_batch(5).id == "solver-000002"
    b.check()


class Moody:
    """Its decisions depend on when it was made."""

    made = 0

    def __init__(self):
        Moody.made += 1
        self.mood = Moody.made

    def accept(self, group):
        return Verdict(self.mood % 2 == 1, "mood")


def test_a_policy_that_cannot_be_restored_is_named(bench, tmp_path):
    Moody.made = 0
    b = bench(journal=tmp_path, data=[Moody]).begin()
    b.push(b.lease(2)[0][0])
    with pytest.raises(
        RunFailed,
        match=r"Pushed.*decided differently at accept \(the group of task train-0 was accepted before; "
        r"'solver' kept it, and now 'solver': Moody said 'mood'",
    ):
        b.restart()


class Whimsical:
    """Refuses another prompt each time that it is made."""

    made = 0

    def __init__(self):
        Whimsical.made += 1
        self.unwanted = f"p{Whimsical.made}"

    def admit(self, prompt):
        return prompt.id != self.unwanted


def test_a_policy_that_refuses_other_prompts_now_is_named(bench, tmp_path):
    Whimsical.made = 0
    b = bench(journal=tmp_path, admission=[Whimsical]).begin()
    assert [task.prompt_id for task in b.lease(4)[0]] == ["p0", "p2"]
    with pytest.raises(
        RunFailed,
        match=r"PromptsConsumed.*at admit \('p1' was refused by 'Whimsical' before, 'p2' is now refused by "
        r"'Whimsical'\)",
    ):
        b.restart()


def test_a_full_disk_holds_tasks_back_and_loses_nothing(bench, tmp_path, caplog):
    b = bench(journal=tmp_path).begin()
    tasks, _ = b.lease(4)
    with largest_file((tmp_path / "entries.log").stat().st_size + 10):
        for task in tasks:
            assert b.push(task).status == "accepted"
        assert b.lease(4)[0] == []
        b.pass_time(1)
        assert "no new tasks are leased: there is no disk space" in caplog.text
        assert "File too large" in b.flow.status().held_back
        batch = b.next_batch(0)
        b.announce(1)
        b.acknowledge(batch.id, 1)
        b.pass_time(1)
        assert caplog.text.count("no new tasks are leased") == 1
    b.pass_time(1)
    assert "tasks are leased again" in caplog.text
    assert b.flow.status().held_back == ""
    b.restart()
    assert b.state.streams["solver"].updates == 1
    assert b.lease(4, serving=1)[0]


def test_overdue_checkpoints_hold_tasks_back(bench, config, tmp_path):
    b = bench(config(checkpoint__every=1, run__max_staleness=4), journal=tmp_path).begin()
    for update in range(4):
        b.update(update)
    assert b.lease(4, serving=4)[0] == []
    assert "saved no checkpoint for 4 updates" in b.flow.status().held_back
    assert not b.flow.leasing.work_available()
    b.flow.training.release(ReleaseBatches(policy="solver", updates=4))
    assert b.lease(4, serving=4)[0]


def test_what_finds_no_room_is_written_later_in_order(tmp_path):
    file = AppendFile(tmp_path / "f")
    with largest_file(5):
        file.append(b"abc", b"def")
        file.append(b"ghi")
        assert file.holds
        assert "File too large" in file.trouble
        assert (tmp_path / "f").read_bytes() == b"abcde"
        assert not file.write_held()
    file.append(b"jkl")
    assert file.write_held()
    assert (file.trouble, file.size) == ("", 12)
    file.close()
    assert (tmp_path / "f").read_bytes() == b"abcdefghijkl"


def test_a_finished_run_stays_finished(bench, config, tmp_path):
    b = bench(config(run__steps=1), journal=tmp_path).begin()
    for task in b.lease(4)[0]:
        b.push(task)
    batch = b.next_batch(0)
    b.announce(1)
    b.acknowledge(batch.id, 1)
    assert b.state.progress.state is RunState.FINISHED
    b.restart()
    assert b.next_batch(1).ended
    b.restart(resumed=True)  # its trainer died before it had saved the model
    assert b.state.progress.state is RunState.RUNNING
    b.flow.training.register(RegisterTrainer(policy="solver", pid=5, host="h", updates=(0, 1)))
    b.announce(2)
    assert b.state.progress.state is RunState.FINISHED
    assert b.next_batch(2).ended


def test_the_wish_to_stop_outlives_the_dataflow(bench, config, tmp_path):
    b = bench(config(checkpoint__every=1), journal=tmp_path).begin()
    tasks, _ = b.lease(4)
    b.state.stop("Ctrl-C")
    assert b.state.train.running == 0
    b.restart()  # before a process got its reply
    assert (b.state.progress.state, b.state.progress.reason) == (RunState.STOPPING, "Ctrl-C")
    assert b.renew([task.id for task in tasks]).stop
    assert b.next_batch(0).ended
    assert b.state.progress.state is RunState.STOPPED
    b.restart(resumed=True)
    assert b.state.progress.state is RunState.RUNNING
    hello = RegisterTrainer(policy="solver", pid=5, host="h", updates=(0,))
    b.flow.training.register(hello)
    b.announce(1)
    b.register_raas("new")
    again, _ = b.lease(4, raas="new", serving=1)
    assert {task.id for task in again} == {task.id for task in tasks}
    b.check()


def test_a_run_that_was_stopped_before_it_began_waits_for_its_first_version_again(bench, tmp_path):
    b = bench(journal=tmp_path)
    b.register_trainers()
    b.state.stop("Ctrl-C")
    b.restart(resumed=True)
    assert b.state.progress.state is RunState.STARTING
    b.begin()
    assert b.state.progress.state is RunState.RUNNING


def test_a_stop_ends_although_trainers_that_know_of_it_have_exited(bench, config, tmp_path):
    b = bench(config(run__deadline_s=10.0), journal=tmp_path).begin()
    b.state.stop("Ctrl-C")
    b.restart()
    b.pass_time(20)
    assert b.state.progress.state is RunState.STOPPING
    b.pass_time(40)
    assert b.state.progress.state is RunState.STOPPED


def test_a_trainer_that_dies_after_the_end_repeats_what_its_checkpoint_does_not_hold(
    bench, config, tmp_path
):
    b = bench(
        config(run__steps=2, checkpoint__every=9), journal=tmp_path, evals={"held": 1}
    ).begin()
    made = []

    def roll_out(version):
        for task in b.lease(8, serving=version)[0]:
            kept = {"rewards": [1.0]} if task.eval_set else {}
            b.push(task, version=version, **kept)

    for update in range(2):
        roll_out(update)
        made.append(b.next_batch(update))
        b.announce(update + 1)
        b.acknowledge(made[-1].id, update + 1)
    roll_out(2)
    assert b.state.progress.state is RunState.FINISHED
    assert b.next_batch(2).ended
    b.leave()
    hello = RegisterTrainer(policy="solver", pid=5, host="h", updates=(0,))
    assert b.flow.training.register(hello).updates == 0
    b.announce(3)
    for update, batch in enumerate(made):
        again = b.next_batch(3 + update)
        assert (again.id, again.tokens.tolist()) == (batch.id, batch.tokens.tolist())
        if update:
            b.restart()  # as well
            again = b.next_batch(3 + update)
            assert again.id == batch.id
        b.announce(4 + update)
        assert not b.acknowledge(batch.id, 4 + update).stop
    answer = b.next_batch(5)
    assert (answer.ended, b.state.progress.state) == (True, RunState.FINISHED)
    assert answer.best_version == -1  # those weights went with the trainer
    assert b.state.evaluations.idle  # which no process could make any more
    b.check()
