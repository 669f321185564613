"""Figures of the groups and the episodes of a step, for the status and for metrics.jsonl."""

from __future__ import annotations

import json
import logging
import math

import msgspec
import numpy as np
import pytest

from astraflow_core.errors import RunFailed, WireError
from astraflow_core.types import Group, Prompt, Sequence, Trajectory, Verdict
from astraflow_runtime.dataflow.journal.steplog import StepLog
from astraflow_runtime.dataflow.rows.rows import shares_of, trained_tokens
from astraflow_runtime.dataflow.rows.step_metrics import FOLDED_GROUPS, MAX_SOURCES, StepStatistics
from astraflow_wire.groups import ReceivedGroup, encode_group
from astraflow_wire.limits import MAX_EPISODE_METRICS
from astraflow_wire.policy_status import EpisodeMean
from astraflow_wire.status import SetOverlap


def share(rewards, lengths, cut=(), source=None, own=1):
    """What policy ``p`` gets of a group; ``own`` sequences for each reward."""
    trajectories = []
    for reward, length in zip(rewards, lengths, strict=True):
        mask = np.arange(length + 2) >= 2
        sequence = Sequence(
            "p", np.zeros(length + 2, np.int32), mask, np.zeros(length + 2, np.float32),
            np.where(mask, 0, -1).astype(np.int32),
        )  # fmt: skip
        trajectories.append(Trajectory((sequence,) * own, rewards={"p": reward}))
    received = ReceivedGroup(encode_group(Group("train-1", "p0", tuple(trajectories)), "r0"))
    prompt = Prompt("p0", {} if source is None else {"source": source})
    found = shares_of(received, trained_tokens(received), prompt, {"p": 0})["p"]
    found.summary.truncated[list(cut)] = True
    return found


def figures(shares, pass_threshold=1.0):
    statistics = StepStatistics(pass_threshold)
    for each in shares:
        statistics.note(each)
    statistics.end_step()
    return statistics.last


def test_figures_are_those_of_all_groups_however_many_are_looked_at_together():
    drawn = np.random.default_rng(3)
    shares, rewards, lengths, cut, equal = [], [], [], 0, 0
    for _ in range(2 * FOLDED_GROUPS + 5):
        size = int(drawn.integers(2, 6))
        own = 1e6 + drawn.integers(0, 2, size).astype(float)
        long = drawn.integers(1, 40, size)
        shares.append(share(own, long, cut=[0]))
        rewards += own.tolist()
        lengths += long.tolist()
        cut += 1
        equal += len(set(own.tolist())) == 1
    found = figures(shares, pass_threshold=1e6 + 1)
    assert found.groups == len(shares)
    assert found.reward_std == pytest.approx(np.std(rewards, ddof=1), rel=1e-9)
    assert found.completion_length_mean == pytest.approx(np.mean(lengths))
    assert found.completion_length_max == max(lengths)
    assert found.truncated_fraction == pytest.approx(cut / len(rewards))
    assert found.equal_groups_fraction == pytest.approx(equal / len(shares))
    assert found.pass_rate == pytest.approx(np.mean(np.array(rewards) > 1e6 + 0.5))
    assert found.pass_rates == {}


def test_an_episode_of_several_sequences_passes_once_and_thresholds_are_rounded_as_rewards_are():
    assert figures([share([0.9, 0.1], [3, 3], own=3)], pass_threshold=0.9).pass_rate == 0.5


def test_a_group_of_one_has_no_spread_to_look_at():
    found = figures([share([1.0], [3])])
    assert (found.equal_groups_fraction, found.reward_std, found.groups) == (None, 0.0, 1)


def test_pass_rates_are_reported_for_each_source_and_for_so_many_only():
    one = [share([1.0, 0.0], [3, 3], source="gsm"), share([1.0, 1.0], [3, 3], source="math")]
    assert figures([*one, share([0.0, 0.0], [3, 3])]).pass_rates == {
        "gsm": {"mean": 0.5, "episodes": 2},
        "math": {"mean": 1.0, "episodes": 2},
        "other": {"mean": 0.0, "episodes": 2},
    }
    many = [share([1.0], [3], source=f"s{n}") for n in range(MAX_SOURCES + 9)]
    odd = [share([1.0], [3], source=source) for source in ("", "x" * 300, 7)]
    rates = figures([*many, *odd]).pass_rates
    assert len(rates) == MAX_SOURCES + 1 and rates["other"]["episodes"] == 12


def line_of(tmp_path):
    return json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])


class Measures:
    def accept(self, group):
        return Verdict(True)

    def admit(self, prompt):
        return True

    def metrics(self):
        return {"seen": 3, "odd": math.nan}


def test_a_line_of_the_log_has_them_and_the_status_too(bench, tmp_path):
    b = bench(data=[Measures], admission=[Measures], steps=StepLog(tmp_path / "metrics.jsonl"))
    b.begin()
    first, second = b.lease(4)[0]
    calls = [{"calls": 2.0}, {"calls": 4.0, "depth": 1.0}]
    b.push(first, rewards=(0.0, 1.0), metrics=calls)
    b.push(second, rewards=(1.0, 1.0))
    batch = b.next_batch(0)
    b.announce(1)
    b.acknowledge(batch.id, 1)
    line, status = line_of(tmp_path), b.flow.status().policies["solver"]
    for facts in (line, msgspec.to_builtins(status)):
        assert facts["groups"] == 2
        assert facts["pass_rate"] == 0.75 and facts["equal_groups_fraction"] == 0.5
        assert facts["reward_std"] == pytest.approx(0.5)
        assert facts["completion_length_max"] == 3 and facts["truncated_fraction"] == 0.0
        assert facts["episodes"] == 4
        assert facts["episode_metrics"] == {
            "calls": {"mean": 3.0, "episodes": 2},
            "depth": {"mean": 1.0, "episodes": 1},
        }
        assert facts["data_metrics"] == {"Measures/seen": 3.0, "Measures/odd": None}
    assert line["admission_metrics"] == {"Measures/seen": 3.0, "Measures/odd": None}


class Broken:
    def admit(self, prompt):
        return True

    def metrics(self):
        raise KeyError("gone")


def test_a_data_policy_without_metrics_to_give_is_named(bench):
    with pytest.raises(RunFailed, match="data policy 'Broken' raised KeyError in metrics"):
        bench(data=[Broken]).begin().flow.status()


def test_metrics_of_episodes_outlive_the_dataflow_also_those_of_a_part(bench, config, tmp_path):
    settings = config(run__group_deadline_s=5.0, run__refill_groups=True, run__group_size=2)
    b = bench(settings, journal=tmp_path).begin()
    first, second = b.lease(4)[0]
    b.push(first, rewards=(1.0, 0.0), metrics=[{"calls": 1.0}, {"calls": 2.0}])
    b.push(second, rewards=(1.0,), late=1, metrics=[{"depth": 5.0}])
    b.restart()
    b.begin()
    (rest,) = [t for t in b.lease(4)[0] if t.prompt_id == second.prompt_id]
    b.push(rest, rewards=(0.0,), metrics=[{"calls": 6.0}])
    b.restart()
    b.begin()
    batch = b.next_batch(0)
    b.announce(1)
    b.acknowledge(batch.id, 1)
    assert b.flow.status().policies["solver"].episode_metrics == {
        "calls": EpisodeMean(mean=3.0, episodes=3),
        "depth": EpisodeMean(mean=5.0, episodes=1),
    }
    b.restart()


def test_ever_new_names_are_dropped_and_reported_once(bench, config, caplog):
    b = bench(config(policy__batch_sequences=4)).begin()
    for step in range(3):
        for number, task in enumerate(b.lease(4, serving=step)[0]):
            names = [f"m{step}-{number}-{n}" for n in range(MAX_EPISODE_METRICS)]
            b.push(task, version=step, metrics=[dict.fromkeys(names, 1.0)] * 2)
        batch = b.next_batch(step)
        b.announce(step + 1)
        b.acknowledge(batch.id, step + 1)
        shown = b.flow.status().policies["solver"].episode_metrics
        assert len(shown) == (0 if step else MAX_EPISODE_METRICS)
    (told,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert told.startswith(
        "episodes of policy 'solver' report more than 64 different metrics; 'm0-1-0' of RaaS 'r0', and any "
        "further new name, is dropped."
    )


def test_a_group_has_a_value_of_each_metric_for_each_trajectory():
    good = encode_group(Group("t", "p", (Trajectory((), metrics={"calls": 1.0}),)), "r0")
    assert ReceivedGroup(good).header.metrics == {"calls": [1.0]}
    with pytest.raises(WireError, match="RaaS 'r0': metric 'calls' has 1 values for 2 trajec"):
        ReceivedGroup(good.replace(b"trajectories\x01", b"trajectories\x02"))


def test_prompts_of_an_evaluation_set_that_are_trained_on_are_counted(bench, caplog, tmp_path):
    """The training prompts are 0, 1, 2 …; the set has the same under other ids."""
    b = bench(evals={"held": 2}, journal=tmp_path).begin()
    while b.flow.status().eval.overlap["held"].trained_on < 2:
        tasks, _ = b.lease(8)
        for task in tasks:
            b.push(task)
        assert tasks
    assert b.flow.status().eval.overlap == {"held": SetOverlap(trained_on=2, prompts=2)}
    (told,) = [r.getMessage() for r in caplog.records if "held out" in r.getMessage()]
    assert told.startswith(
        "evaluation set 'held' is not held out: its prompt 'p0' is also rolled out"
    )
    b.restart()
