from __future__ import annotations

import itertools

import pytest

from astraflow_runtime.dataflow.tasks.scores import pass_at_k
from astraflow_wire.messages import RegisterTrainer
from astraflow_wire.status import BestVersion


def entry(b, index=-1):
    return b.state.evaluations.history[index]


def roll(b, raas="r0", serving=0, rewards=(1.0,), free=64):
    """Roll out whatever the RaaS can get; returns how many evaluation tasks it was."""
    evaluated = 0
    while tasks := b.lease(free=free, raas=raas, serving=serving)[0]:
        for task in tasks:
            if task.eval_set:
                b.push(task, raas=raas, version=task.pinned["solver"], rewards=rewards)
                evaluated += 1
            else:
                b.push(task, raas=raas, version=serving)
    return evaluated


def update(b, version):
    batch = b.next_batch(version)
    b.announce(version + 1)
    b.acknowledge(batch.id, version + 1)


@pytest.mark.parametrize(("n", "c", "k"), [(5, 2, 1), (5, 2, 3), (6, 0, 2), (6, 6, 6), (4, 3, 2)])
def test_pass_at_k_is_the_share_of_subsets_with_a_correct_one(n, c, k):
    samples = [1] * c + [0] * (n - c)
    subsets = list(itertools.combinations(samples, k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-12)


def test_the_first_version_is_evaluated_on_a_pinned_raas(bench, config):
    b = bench(config(eval__every=2), evals={"held": 3}).begin()
    tasks, notices = b.lease(free=3)
    assert notices.pins == {"solver": 0}
    assert [(t.eval_set, t.prompt_id, t.pinned) for t in tasks] == [
        ("held", f"held{i}", {"solver": 0}) for i in range(3)
    ]
    assert all(t.sampling.temperature == 0 and t.group_size == 1 for t in tasks)
    for task, reward in zip(tasks, (1.0, 0.0, 1.0), strict=True):
        b.push(task, rewards=(reward,))
    assert entry(b)["versions"] == {"solver": 0}
    assert entry(b)["sets"]["held"] == {
        "n": 3, "k": 1, "failed": 0, "avg": 2 / 3, "pass": 2 / 3, "mean_reward": 2 / 3,
    }  # fmt: skip
    assert b.renew([]).pins == {}


def test_avg_and_pass_over_several_samples(bench, config):
    b = bench(config(eval__samples=4, eval__pass_threshold=0.5), evals={"held": 2}).begin()
    tasks = [t for t in b.lease()[0] if t.eval_set]
    b.push(tasks[0], rewards=(1.0, 0.0, 0.5, 0.0))
    b.push(tasks[1], rewards=(0.25, 0.0))  # the workflow rejected two of its trajectories
    result = entry(b)["sets"]["held"]
    assert (result["avg"], result["pass"]) == (0.25, 0.5)
    assert result["mean_reward"] == pytest.approx(1.75 / 6)


def test_evaluations_come_every_so_many_versions_and_at_the_end(bench, config):
    b = bench(config(run__steps=5, run__max_staleness=0, eval__every=2), evals={"held": 2}).begin()
    for version in range(5):
        roll(b, serving=version)
        update(b, version)
    assert b.state.progress.state == "finishing"
    assert b.next_batch(5) is None
    roll(b, serving=5)
    assert [e["version"] for e in b.state.evaluations.history] == [0, 2, 4, 5]
    assert b.state.progress.state == "finished"
    b.check()


def test_training_continues_elsewhere_while_an_old_version_is_evaluated(bench, config):
    b = bench(config(eval__every=1, run__max_staleness=1), evals={"held": 4}).begin("r0", "r1")
    first = b.lease(free=1)[0]  # r0 is the host
    assert first[0].eval_set
    assert roll(b, "r1") == 3  # r1 serves the version anyway
    update(b, 0)
    assert b.renew([], raas="r1", serving=1).pins == {}
    assert b.renew([first[0].id]).pins == {"solver": 0}
    # Version 1 fell due meanwhile: it waits with its own versions, and both are retained.
    assert [e.versions["solver"] for e in b.state.evaluations.all_waiting] == [0, 1]
    assert roll(b, "r1", serving=1) == 0
    update(b, 1)
    b.renew([], raas="r1", serving=2)
    assert b.announce(2) == [0, 1]
    b.push(first[0], rewards=(1.0,))
    # The host of the next evaluation is sent to version 1, which it may never have seen.
    active = b.state.evaluations.active
    assert active.versions == {"solver": 1}
    notices = b.renew([], raas=active.host, serving=2)
    assert notices.pins == {"solver": 1}
    assert 1 in [a.version for a in notices.announcements]
    assert roll(b, raas=active.host, serving=1) == 4
    b.check()


def test_a_host_that_goes_away_is_replaced(bench):
    b = bench(evals={"held": 2}).begin("r0", "r1")
    task = b.lease(free=1)[0][0]
    b.lease(free=0, raas="r1")
    b.leave()
    assert b.state.evaluations.active.host == "r1"
    assert b.renew([], raas="r1").pins == {"solver": 0}
    assert roll(b, raas="r1") == 2
    assert entry(b)["sets"]["held"]["n"] == 2
    assert task.id == "eval-0"


def test_an_evaluation_whose_weights_went_with_the_trainer_fails_and_blocks_no_one(bench, config):
    b = bench(config(eval__every=1), evals={"held": 2}).begin()
    tasks, _ = b.lease(free=1)
    b.leave("r0")  # it was the only one that served version 0
    b.register_raas("r1")
    b.flow.training.register(RegisterTrainer(policy="solver", pid=3, host="h"))
    b.announce(1)
    assert tasks[0].eval_set
    b.pass_time(1)
    assert entry(b)["versions"] == {"solver": 0} and entry(b)["sets"]["held"]["failed"] == 2
    roll(b, "r1", serving=1)
    assert entry(b)["versions"] == {"solver": 1} and entry(b)["sets"]["held"]["failed"] == 0
    b.check()


def test_prompts_that_fail_are_named_in_the_result(bench, config):
    b = bench(config(run__task_attempts=2), evals={"held": 2}).begin()
    tasks = [t for t in b.lease()[0] if t.eval_set]
    b.push(tasks[0], rewards=(1.0,))
    b.fail(tasks[1], "reward raised")
    again = next(t for t in b.lease()[0] if t.eval_set)
    b.fail(again, "reward raised")
    result = entry(b)["sets"]["held"]
    assert (result["n"], result["failed"], result["avg"]) == (1, 1, 1.0)
    assert result["last_error"] == "reward raised (prompt held1)"


def test_tokens_of_another_version_are_refused(bench):
    b = bench(evals={"held": 1}).begin()
    task = b.lease(free=1)[0][0]
    b.announce(1)
    with pytest.raises(Exception, match="pinned to version 0"):
        b.push(task, version=1, rewards=(1.0,))


def test_the_best_version_is_remembered_and_retained(bench, config):
    b = bench(
        config(run__steps=3, run__max_staleness=0, eval__every=1), evals={"x": 1, "y": 1}
    ).begin()
    for version, reward in enumerate((0.0, 1.0, 0.0)):
        roll(b, serving=version, rewards=(reward,))
        update(b, version)
    roll(b, serving=3, rewards=(0.0,))
    assert b.flow.status().best_version == BestVersion(version=1, versions={"solver": 1}, avg=1.0)
    answer = b.next_batch(3)
    assert (answer.ended, answer.best_version) == (True, 1)


def test_when_the_best_went_with_its_trainer_the_best_of_the_others_is_kept(
    bench, config, tmp_path
):
    b = bench(
        config(run__steps=5, run__max_staleness=0, eval__every=1),
        evals={"x": 2},
        journal=tmp_path,
    ).begin()
    for version, rewards in enumerate([(0.0,), (1.0,)]):
        roll(b, serving=version, rewards=rewards)
        update(b, version)
    assert b.state.evaluations.needed_versions("solver", b.state.versions.available) == [2, 1]
    b.flow.training.register(RegisterTrainer(policy="solver", pid=5, host="h", updates=(2,)))
    b.announce(3)
    solved = iter([1.0, 0.0])  # one of two prompts at version 3, none later
    for version in (3, 4, 5):
        while tasks := b.lease(serving=version)[0]:
            for task in tasks:
                rewards = (next(solved, 0.0),) if task.eval_set else (0.0, 1.0)
                b.push(task, version=version, rewards=rewards)
        update(b, version)
    retained = b.announce(6)
    assert 3 in retained and not {1, 2} & set(retained)
    b.restart()
    roll(b, serving=6, rewards=(0.0,))
    assert b.flow.status().best_version.version == 1  # as the report has it
    answer = b.next_batch(6)
    assert (answer.ended, answer.best_version) == (True, 3)
