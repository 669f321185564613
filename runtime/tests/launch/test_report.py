"""What the report of a run says beside its curves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from launch_support import Table, parsed, status_of

from astraflow_core.errors import UserError
from astraflow_runtime.launch.results.report import report_command
from astraflow_runtime.launch.results.summary import summarise


@pytest.mark.parametrize(("passed", "told"), [(0.0, True), (1.0, False)])
def test_the_report_of_a_run_with_equal_rewards_says_what_to_look_at(
    table: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str], passed: float, told: bool
) -> None:
    ended = {"name": "fake", "seed": 0, "state": "finished", "error": None, "setup_s": None}
    summary = {**ended, "wall_s": 1, "cpu_s": 1, **summarise(parsed(table), status_of(10), [], [])}
    summary["policies"]["solver"] |= {"equal_groups_fraction": 1.0, "pass_rate": passed}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    assert report_command(tmp_path) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert (
        "rewards within each group were equal" in out and "docs/does-not-learn.md" in out
    ) == told


@pytest.mark.parametrize(("failed", "left"), [(1, 2), (3, 0)])
def test_the_prompts_of_a_report_add_up(
    table: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str], failed: int, left: int
) -> None:
    ended = {"name": "fake", "seed": 0, "state": "finished", "error": None, "setup_s": None}
    summary = {**ended, "wall_s": 1, "cpu_s": 1, **summarise(parsed(table), status_of(10), [], [])}
    summary |= {
        "admitted": 9,
        "accepted": 5,
        "rejected": 1,
        "failed": failed,
        "set_aside": 0,
        "lost": 0,
    }
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    assert report_command(tmp_path) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"9 admitted, 5 used, 1 rejected, {failed} failed, 0 lost, {left} unfinished" in out


def test_a_report_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"summary\.json"):
        report_command(tmp_path)
