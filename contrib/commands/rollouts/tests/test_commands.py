"""The output of the commands, for a small store with hostile texts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from astraflow_contrib_rollouts import progress
from astraflow_contrib_rollouts.recompute import reward_override
from astraflow_contrib_rollouts.rescoring import correlation
from astraflow_core.config.sources import parse_value
from astraflow_runtime.cli import main
from astraflow_runtime.rollouts.building import line_of
from astraflow_runtime.rollouts.records import (
    FailureRecord,
    GroupRecord,
    StoredCompletion,
    StoredSequence,
    StoredTrajectory,
    StoredTurn,
    StoredVerdict,
    TrainedRow,
    UpdateRecord,
    raw,
)
from astraflow_runtime.rollouts.segments import FOLDER, SegmentWriter, encode, segments
from astraflow_testing.runs import TABLE_RUN

HOSTILE = (
    '\x1b[2J\x1b]0;owned\x07[red]bold[/red] \u202etxt\r<tool_call>\n{"name": "shell"}</tool_call>'
)
SHOWN = "\\u001b[2J\\u001b]0;owned\\u0007[red]bold[/red] \\u202etxt\\u000d<tool_call>"


def trajectory(reward: float, text: str, length: int) -> StoredTrajectory:
    sampled = np.arange(length) >= 2
    tokens = raw(np.arange(length), "<i4")
    sequence = StoredSequence(
        "solver",
        reward,
        tokens,
        raw(sampled, "u1"),
        raw(np.where(sampled, -0.5, 0), "<f4"),
        raw(np.where(sampled, 3, -1), "<i4"),
    )
    turns = [
        StoredTurn("prompt", "solver", "Say hello", 0, 0, 2),
        StoredTurn("assistant", "solver", text, 0, 2, length),
    ]
    completions = [StoredCompletion("solver", text, "stop", tokens[8:])]
    return StoredTrajectory({"solver": reward}, [sequence], {"form": reward}, turns, completions)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with one group that was trained on, and an attempt that failed."""
    good, bad = trajectory(1.0, "hello", 4), trajectory(0.25, HOSTILE, 6)
    group = GroupRecord(
        number=3, group="train-3", time_s=1e9, raas="raas-0", prompt_id="p\x1b3", prompt_data={"answer": "hello"},
        accepted=True, trajectories=[bad, good], verdicts=[StoredVerdict("solver", kept=2)], first_trajectory=6,
    )  # fmt: skip
    failed = FailureRecord(4, "train-4", 1e9 + 1, "raas-0", "p4", {}, f"boom {HOSTILE}", "sandbox")
    row = TrainedRow(
        3, 7, good.sequences[0].digest, 1.0, 2,
        raw(np.array([0, 0, 0.75, 0.75]), "<f4"), raw(np.array([0, 0, -0.25, -0.125]), "<f4"),
    )  # fmt: skip
    update = UpdateRecord("solver", "solver-000004", 5, 3, 1e9 + 2, [row])
    for writer, records in (("dataflow", (group, failed)), ("trainer-solver", (update,))):
        segments = SegmentWriter(tmp_path / FOLDER, writer, 1 << 20)
        for record in records:
            assert segments.append(line_of(record), encode(record))  # type: ignore[arg-type]
        segments.close()
    (tmp_path / "config.toml").write_text("[run]\n")
    (tmp_path / "summary.json").write_text("{}")
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    code = main([str(each) for each in arguments])
    out = capsys.readouterr().out
    assert not set(out) & set("\x1b\x07\r\u202e"), "a terminal would obey this"
    return code, out


def test_the_list_has_what_was_trained_and_what_failed(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = told(capsys, "rollouts", run)
    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    assert lines[1][:7] == ["train-3", "0", "waiting", "0.25", "6", "2", "3"]
    assert lines[2][:8] == ["train-3", "1", "5", "trained", "1", "4", "2", "3"]
    assert "calls shell" in out and "sandbox: boom" in out
    assert out.splitlines()[-1] == f"3 rollouts of 3 in {run}"
    assert told(capsys, "rollouts", run, "--filter", "reward>5")[0] == 1
    assert told(capsys, "rollouts", run, "--follow") == (0, "")


def test_json_has_the_arrays(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = told(capsys, "rollouts", run, "--json", "--filter", "tool=shell")
    (entry,) = map(json.loads, out.splitlines())
    assert (code, entry["group"], entry["index"], entry["step"]) == (0, "train-3", 0, None)
    _, out = told(capsys, "rollouts", run, "--group", "train-3", "--json")
    (sequence,) = json.loads(out)["trajectories"][1]["sequences"]
    assert sequence["logprobs"] == [0.0, 0.0, -0.5, -0.5]
    assert sequence["updates"][0]["trainer_logprobs"] == [0.0, 0.0, -0.25, -0.125]


def test_a_trajectory_is_shown_turn_by_turn_and_token_by_token(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out = told(capsys, "rollouts", run, "--group", "train-3", "--trajectory", "0")
    assert SHOWN in out and "--- assistant (solver, 4 tokens)" in out
    _, out = told(capsys, "rollouts", run, "--group", "train-3", "--trajectory", "1", "--tokens")
    assert "step 5 of solver (batch solver-000004, version 3), mean advantage 0.75" in out
    assert out.splitlines()[-1].split() == ["3", "3", "3", "yes", "-0.5000", "-0.1250", "0.7500"]
    _, out = told(capsys, "rollouts", run, "--group", "train-3")
    assert '"answer": "hello"' in out and "solver: kept, 2 sequences" in out


def test_best_and_worst_are_compared(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out = told(capsys, "rollouts", run, "--best-worst")
    assert "--- worst: trajectory 0, rewards solver 0.25" in out
    assert "+++ best: trajectory 1, rewards solver 1" in out
    assert "+hello" in out and f"-{SHOWN[:20]}" in out and " Say hello" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--trajectory", "1"), "give --group ID too"),
        (("--group", "train-3", "--tokens"), "give --group ID and --trajectory N too"),
        (("--group", "train-3", "--trajectory", "2"), "group train-3 has 2, counted from 0"),
        (("--group", "train-9"), "group train-9 is not stored"),
        (("--follow", "--best-worst"), "leave out --group and --best-worst"),
        (("--filter", "color=red"), "no key 'color'"),
        (("--best-worst", "--filter", "reward=1"), "no group in"),
    ],
)
def test_mistakes_are_explained(
    run: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    assert main(["rollouts", str(run), *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_reward_is_named_in_three_ways(tmp_path: Path) -> None:
    file = tmp_path / "other.toml"
    file.write_text(
        '[reward]\nuse = "exact"\nwords = ["a\\"b", "ü"]\nparts = { x = { weight = 1e-3, on = true } }\n'
    )
    expected = {"use": "exact", "words": ['a"b', "ü"], "parts": {"x": {"weight": 1e-3, "on": True}}}
    key, _, value = reward_override(str(file)).partition("=")
    assert (key, parse_value(value)) == ("reward", expected)
    assert parse_value(reward_override("exact").partition("=")[2]) == {"use": "exact"}
    assert reward_override('{use = "exact"}') == 'reward={use = "exact"}'


def damage(run: Path, writer: str) -> None:
    (segment,) = segments(run / FOLDER, writer)
    file = segment.data(run / FOLDER)
    content = bytearray(file.read_bytes())
    content[60] ^= 0xFF
    file.write_bytes(content)


def test_a_damaged_record_ends_no_search(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = told(capsys, "rollouts", run, "--filter", "text~HELLO")
    assert code == 0 and "2 rollouts of 3" in out and "are damaged" not in out
    damage(run, "dataflow")
    code, out = told(capsys, "rollouts", run, "--filter", "text~boom")
    assert code == 0 and "1 rollouts of 3" in out
    assert "; 2 could not be searched: their records are damaged" in out
    assert main(["rollouts", str(run), "--filter", "text~boom", "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["group"] == "train-4" and "are damaged" in shown.err


def test_a_damaged_record_ends_no_recomputing(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "config.toml").write_text(TABLE_RUN)
    code, out = told(capsys, "rewards", "recompute", run, "--reward", "exact")
    assert code == 0 and "solver: 2 rollouts, mean reward 0.625 -> 0.5" in out
    damage(run, "trainer-solver")
    code, out = told(capsys, "rewards", "recompute", run, "--reward", "exact")
    assert code == 1 and "train-3/0: " in out and "is damaged" in out
    assert "2 rollouts could not be scored" in out


def test_a_reward_that_cannot_be_built_is_explained(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (run / "config.toml").write_text(TABLE_RUN)
    (run / "argument_free_rewards.py").write_text("def always():\n    return 1.0\n")
    monkeypatch.syspath_prepend(run)
    assert main(["rewards", "recompute", str(run), "--reward", "argument_free_rewards:always"]) == 2
    said = capsys.readouterr().err
    assert "reward 'argument_free_rewards:always' cannot be built: TypeError" in said
    assert "a function of one argument named 'view'" in said


def test_a_mistake_in_the_reward_names_the_option(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "config.toml").write_text(TABLE_RUN)
    table = '{use = "exact", partail = 1}'
    assert main(["rewards", "recompute", str(run), "--reward", table]) == 2
    said = capsys.readouterr().err
    assert "--reward: 1 problem" in said and "reward.partail: unknown key" in said
    assert "config.toml" not in said


def test_a_reward_that_takes_long_is_reported(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (run / "config.toml").write_text(TABLE_RUN)
    (run / "slow_rewards.py").write_text(
        "import asyncio\nasync def slow(view):\n    await asyncio.sleep(0.2)\n    return 1.0\n"
    )
    monkeypatch.syspath_prepend(run)
    monkeypatch.setattr(progress, "EVERY_S", 0.02)
    assert main(["rewards", "recompute", str(run), "--reward", "slow_rewards:slow"]) == 0
    assert "0 of 2 rollouts scored; 2 under way, train-3/0 for 0 s" in capsys.readouterr().err


def test_correlation_of_what_does_not_vary_is_none() -> None:
    one = np.array([1.0, 2.0, 4.0])
    assert correlation(one, -one) == pytest.approx(-1)
    assert correlation(one, np.ones(3)) is None
