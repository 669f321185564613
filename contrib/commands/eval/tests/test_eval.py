"""The command on a workflow whose outcomes are known, with real processes."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from odd_run import MODEL, ODD_RUN

from astraflow_contrib_eval.figures import SCHEMA
from astraflow_runtime.cli import main
from astraflow_testing.runs import User


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.slow
def test_figures_count_what_was_played_and_name_what_failed(user: User) -> None:
    ended = user.astraflow(
        *("eval", MODEL, "--config", "odd.toml", "--set", "numbers", "--temperature", "1"),
        *("--json", "figures.json", "--rollouts", "rollouts.jsonl", "--tokens"),
    )
    assert ended.exit_code == 0, ended.text
    document = json.loads((user.directory / "figures.json").read_text())
    assert list(document["sets"]) == ["numbers"]
    figures = document["sets"]["numbers"]
    # Of the ten numbers 3 and 8 fail, 4 and 9 are rejected.
    assert (figures["n"], figures["k"], figures["failed"]) == (8, 4, 2)
    assert figures["avg"] == pytest.approx((2 * 1 + 2 * 0.5) / 8)
    assert figures["pass"] == pytest.approx((2 + 2) / 8)
    assert figures["mean_reward"] == pytest.approx((8 + 4) / 24)
    own = figures["policies"]["solver"]
    assert own["pass"]["2"]["value"] == pytest.approx((2 + 2 * 5 / 6) / 8)
    assert own["avg"]["low"] < own["avg"]["value"] < own["avg"]["high"]
    episodes = figures["episodes"]
    assert [episodes[key] for key in ("planned", "played", "failed", "rejected")] == [40, 32, 8, 8]
    assert "cannot be played" in episodes["last_error"]
    assert not document["partial"]
    assert "8 episodes failed in every attempt" in ended.out and "0.375 [" in ended.out

    lines = lines_of(user.directory / "rollouts.jsonl")
    outcomes = [line["outcome"] for line in lines]
    assert [outcomes.count(name) for name in ("played", "failed", "rejected")] == [24, 8, 8]
    assert {(line["prompt"], line["sample"]) for line in lines} == {
        (f"number-{number}", sample) for number in range(10) for sample in range(4)
    }
    for line in lines:
        if line["outcome"] == "played":
            (sequence,) = line["sequences"]
            assert line["correct"]["solver"] == (line["reward"]["solver"] >= 1)
            assert sum(sequence["sampled"]) >= 1 and line["metrics"]["kind"] in (0, 1, 2)
    assert user.left_running() == []


@pytest.mark.slow
def test_a_set_of_which_no_prompt_can_be_evaluated_has_no_figures(user: User) -> None:
    user.environment |= {"FAILS": "1", "ASTRAFLOW_DRY_CALL_S": "none"}
    ended = user.astraflow(
        *("eval", MODEL, "--config", "odd.toml", "--set", "numbers", "--json", "figures.json"),
    )
    assert ended.exit_code == 1, ended.text
    assert "no prompt of set 'numbers' could be evaluated with" in ended.err
    assert "all 10 failed; at last:" in ended.err and "cannot be played" in ended.err
    figures = json.loads((user.directory / "figures.json").read_text())["sets"]["numbers"]
    assert (figures["n"], figures["failed"], figures["avg"]) == (0, 10, None)


@pytest.mark.slow
def test_ctrl_c_leaves_what_was_played_and_no_process(user: User) -> None:
    user.environment["HANGS_FROM"] = "3"
    rollouts = user.directory / "rollouts.jsonl"
    process = begin_and_hang(user, rollouts)
    process.send_signal(signal.SIGINT)
    ended = user.end(process, 60)
    assert ended.exit_code == 130, ended.text
    document = json.loads(ended.out)
    assert document["partial"]
    figures = document["sets"]["numbers"]
    assert (figures["n"], figures["episodes"]["played"], figures["failed"]) == (3, 12, 0)
    assert figures["avg"] == pytest.approx(1.5 / 3)
    assert user.left_running() == []


@pytest.mark.slow
def test_no_engine_outlives_a_killed_evaluation(user: User) -> None:
    user.environment["HANGS_FROM"] = "3"
    process = begin_and_hang(user, user.directory / "rollouts.jsonl")
    process.kill()
    process.wait()
    assert user.left_running(within_s=30) == []


def begin_and_hang(user: User, rollouts: Path) -> subprocess.Popen[str]:
    """An evaluation whose episodes of the first three numbers have ended, and no other will."""
    arguments = ("eval", MODEL, "--config", "odd.toml", "--set", "numbers", "--json", "-")
    process = user.start(*arguments, "--rollouts", rollouts)
    user.wait_for(lambda: rollouts.exists() and len(lines_of(rollouts)) == 12, 60)
    return process


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            (MODEL, "--config", "odd.toml", "--set", "number"),
            "are numbers, others; did you mean 'numbers'?",
        ),
        ((MODEL,), "give --config FILE"),
        ((MODEL, "--config", "odd.toml", "--version", "3"), "is a model, which has no version 3"),
        ((f"{MODEL}@3", "--config", "odd.toml", "--step", "2"), "names a version, and so does"),
        (("runs/none",), "no run 'runs/none'"),
        ((MODEL, "--config", "odd.toml", "--policy", "solve"), "did you mean 'solver'?"),
        ((MODEL, "--config", "odd.toml", "--engine", "torsh"), "no engine 'torsh' is installed"),
        ((MODEL, "--config", "odd.toml", "--engine-key", "a=1"), "add --engine NAME"),
        ((MODEL, "--config", "odd.toml", "--tokens"), "give --rollouts FILE"),
        ((MODEL, "--config", "odd.toml", "--compare", "odd.toml"), "cannot be read as JSON"),
        (
            (MODEL, "--config", "odd.toml", "--compare", "bare.json"),
            "it has no set 'numbers', but x",
        ),
        ((MODEL, "--config", "odd.toml", "--compare", "runs/nope"), "--compare: "),
        ((MODEL, "--config", "odd.toml", "--json", "nope/x.json"), "there is no folder 'nope'"),
        ((MODEL, "--config", "odd.toml", "--json", "."), "it is a folder"),
        (
            (MODEL, "--config", "odd.toml", "--rollouts", "nope/x"),
            "--rollouts nope/x: it cannot be",
        ),
        ((MODEL, "--config", "bare.toml"), "there is nothing to evaluate on"),
    ],
)
def test_mistakes_are_reported_before_anything_starts(
    user: User,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    said: str,
) -> None:
    user.write("bare.toml", ODD_RUN.partition("[eval]")[0])
    user.write("bare.json", json.dumps({"schema": SCHEMA, "sets": {"x": {}}}))
    monkeypatch.chdir(user.directory)
    monkeypatch.syspath_prepend(str(user.directory))
    monkeypatch.setenv("XDG_CACHE_HOME", user.environment["XDG_CACHE_HOME"])
    assert main(["eval", *arguments]) == 2
    told = capsys.readouterr().err
    assert said in told and ": starting" not in told
