"""The way of prompts and groups, told from the journal, against what was done."""

from __future__ import annotations

import json
import re

import pytest

from astraflow_core.types import Verdict
from astraflow_runtime.cli import main
from astraflow_runtime.dataflow.http.exporter import exporter
from astraflow_wire.batches import NoBatch


class Odd:
    """Refuses prompts with an odd number."""

    def admit(self, prompt):
        return int(prompt.id[1:]) % 2 == 0

    def why_refused(self, prompt):
        return "odd"


class Mixed:
    def accept(self, group):
        return Verdict(len(set(group.rewards.tolist())) > 1, "all equal")


class Nobody:
    def admit(self, prompt):
        return False


@pytest.fixture
def run(bench, config, tmp_path):
    (tmp_path / "config.toml").write_text("[run]\ntask_attempts = 2\n")
    made = config(run__max_staleness=1, run__task_attempts=2, policy__batch_sequences=2)
    return bench(made, admission=[Odd], data=[Mixed], journal=tmp_path / "journal").begin()


def told(capsys, tmp_path, subject, name):
    assert main(["trace", subject, name, "--run", str(tmp_path), "--json"]) == 0
    as_json = json.loads(capsys.readouterr().out)
    assert main(["trace", subject, name, "--run", str(tmp_path)]) == 0
    return as_json, capsys.readouterr().out


def update(b, version):
    batch = b.next_batch(version)
    assert batch is not None
    assert not isinstance(batch, NoBatch)
    b.announce(version + 1)
    b.acknowledge(batch.id, version + 1)
    return batch.id


def test_a_group_from_its_admission_to_the_update(run, capsys, tmp_path):
    run.pass_time(2)
    (task, *_), _ = run.lease(2)
    run.pass_time(3)
    run.push(task, rewards=(0.0, 1.0))
    assert update(run, 0) == "solver-000000"
    for where in (run, run.restart()):
        as_json, text = told(capsys, tmp_path, "group", task.id)
        (group,) = as_json["groups"]
        assert (group["state"], group["prompt"], group["trajectories"]) == ("accepted", "p0", 2)
        assert [a["raas"] for a in group["attempts"]] == ["r0"]
        assert group["pushed_s"] - group["attempts"][0]["since_s"] == 3
        (share,) = group["shares"]
        assert (share["policy"], share["accepted"], share["rewards"]) == ("solver", True, [0, 1])
        for index, row in enumerate(share["rows"]):
            assert (row["index"], row["state"]) == (index, "trained")
            (use,) = row["batches"]
            assert (use["batch"], use["updates"], use["published"]) == ("solver-000000", 0, 1)
        assert "offered; admitted as group train-0" in text
        assert "solver-000000 (trained" in text
        where.check()


def test_a_prompt_that_was_refused_and_one_whose_group_was_rejected(run, capsys, tmp_path):
    tasks, _ = run.lease(4)
    assert [task.prompt_id for task in tasks] == ["p0", "p2"]
    run.push(tasks[1], rewards=(1.0, 1.0))
    as_json, text = told(capsys, tmp_path, "prompt", "p1")
    (offer,) = as_json["offers"]
    assert (offer["admitted"], offer["by"], offer["reason"]) == (False, "Odd", "odd")
    assert as_json["groups"] == []
    assert "refused by 'Odd': odd" in text
    as_json, text = told(capsys, tmp_path, "prompt", "p2")
    (share,) = as_json["groups"][0]["shares"]
    assert (share["accepted"], share["by"], share["reason"]) == (False, "Mixed", "all equal")
    assert "rejected by data policy 'Mixed': all equal" in text
    decisions = run.flow.status().decisions
    assert decisions["prompts"]["Odd"]["admit"] == {"admitted": 2, "odd": 1}
    assert decisions["solver"]["Mixed"]["accept"] == {"all equal": 1}
    labels = 'decision="odd",name="Odd",place="prompts",point="admit"'
    exported = exporter(run.flow.status)().decode()
    assert f"astraflow_data_decisions_total{{{labels}}} 1.0" in exported


def test_leases_that_brought_nothing_are_reported_with_their_reasons(run, capsys, tmp_path):
    run.register_raas("r1")
    (first,), _ = run.lease(2)
    run.fail(first, "the tool broke")
    (again,), _ = run.lease(2, "r1")
    assert again.id == first.id
    run.leave("r1")
    run.register_raas("r2")
    run.lease(2, "r2")
    run.pass_time(31)
    as_json, text = told(capsys, tmp_path, "group", first.id)
    (group,) = as_json["groups"]
    assert group["state"] == "set_aside" == run.state.train.outcome(first.id)
    assert [a["raas"] for a in group["attempts"]] == ["r0", "r1", "r2"]
    assert "ended without a result: the tool broke" in text
    assert "RaaS 'r1' left: test" in text
    assert "set aside" in text


def test_rows_that_became_too_stale_are_reported(run, capsys, tmp_path):
    (late,), _ = run.lease(2)
    for version in range(2):
        (task,), _ = run.lease(2, serving=version)
        run.push(task, version=version)
        update(run, version)
    run.push(late, rewards=(0.0, 1.0), version=(0, 1))
    assert run.next_batch(2) is None
    as_json, text = told(capsys, tmp_path, "group", late.id)
    (share,) = as_json["groups"][0]["shares"]
    assert (share["stale"], [row["state"] for row in share["rows"]]) == (1, ["buffered"])
    assert "1 sequences were already too stale" in text


def test_an_admission_against_the_policies_is_reported(bench, config, capsys, tmp_path):
    (tmp_path / "config.toml").write_text("[run]\n")
    b = bench(config(), prompts=3, admission=[Nobody], journal=tmp_path / "journal").begin()
    b.lease(2)
    as_json, text = told(capsys, tmp_path, "prompt", "p0")
    assert [offer["admitted"] for offer in as_json["offers"]] == [False, True]
    assert as_json["offers"][0]["reason"] == "refused"
    assert "forced, because the data policies refused a whole epoch" in text


def test_an_evaluation_is_reported_too(bench, config, capsys, tmp_path):
    (tmp_path / "config.toml").write_text("[run]\n")
    b = bench(config(), evals={"held": 1}, journal=tmp_path / "journal").begin()
    task = next(task for task in b.lease(64)[0] if task.eval_set)
    b.push(task, rewards=(1.0,))
    as_json, text = told(capsys, tmp_path, "prompt", "held0")
    (group,) = as_json["groups"]
    assert (group["group"], group["eval_set"], group["state"]) == (task.id, "held", "accepted")
    assert [a["raas"] for a in group["attempts"]] == ["r0"]
    assert "of evaluation set 'held'" in text


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (("prompt", "p77"), "no prompt 'p77' was found in .*; it knows 1, such as p0"),
        (("group", "train-9"), "no group 'train-9' was found in .*; it knows 1, such as train-0"),
    ],
)
def test_what_is_not_there_is_named(run, capsys, tmp_path, words, match):
    run.lease(2)
    assert main(["trace", *words, "--run", str(tmp_path)]) == 2
    assert re.search(match, capsys.readouterr().err)


def test_a_folder_without_a_journal_is_named(capsys, tmp_path, monkeypatch):
    assert main(["trace", "prompt", "p", "--run", str(tmp_path)]) == 2
    assert "it is neither a run directory" in capsys.readouterr().err
    (tmp_path / "config.toml").write_text("[run]\n")
    assert main(["trace", "prompt", "p", "--run", str(tmp_path)]) == 2
    assert "has no journal" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert main(["trace", "prompt", "p"]) == 2
    assert "which run?" in capsys.readouterr().err


def test_the_newest_run_is_meant(run, capsys, tmp_path, monkeypatch):
    run.lease(2)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mine").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["trace", "prompt", "p0"]) == 0
    assert "running on r0; no result yet" in capsys.readouterr().out
