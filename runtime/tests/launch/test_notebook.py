"""Runs as a notebook shows them: a table with curves, frames, a picture."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from launch_support import Table, parsed, status_of

import astraflow_runtime
from astraflow_core.errors import UserError
from astraflow_runtime.launch.results.summary import summarise

HOSTILE = "<script>alert('&')</script> $\\frac$ \x1b[2J"


@pytest.fixture
def folder(table: Table, tmp_path: Path) -> Path:
    """The directory of a run that goes on."""
    lines: list[dict[str, Any]] = [
        {"time": 1.7e9 + step, "policy": policy, "step": step, "reward": step / 10, "metrics": {"loss": None if step == 1 else 0.5},
         "pass_rates": {"easy": {"mean": 0.25}}}
        for step in range(1, 4) for policy in ("solver", "judge")
    ]  # fmt: skip
    lines.append({"time": 1.7e9, "eval": {"versions": {"solver": 2}, "sets": {"held_out": {"avg": 0.5, "n": 8}}}})  # fmt: skip
    (tmp_path / "config.toml").write_text(tomli_w.dumps({"run": {"name": HOSTILE}}))
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def ended(folder: Path, table: Table) -> None:
    figures = {"wall_s": 70.0, "cpu_s": 90.0, "setup_s": 5.0}
    summary = {"name": HOSTILE, "seed": 0, "state": "failed", "error": HOSTILE, **figures}
    summary |= summarise(parsed(table), status_of(10), [], [])
    (folder / "summary.json").write_text(json.dumps(summary))


def test_a_run_is_shown_without_scripts(folder: Path, table: Table) -> None:
    ended(folder, table)
    run = astraflow_runtime.load_run(str(folder))
    html = run._repr_html_()
    assert run.state == "failed" and "staleness" in html
    assert "<script" not in html and "\x1b" not in html and "&lt;script&gt;" in html
    assert re.findall(r'src="(.{22})', html) == ["data:image/png;base64,"]
    assert not re.search(r"\son\w+=", html.replace(HOSTILE, ""))


def test_frames_have_what_the_files_have(folder: Path) -> None:
    run = astraflow_runtime.load_run(folder)
    frame = run.metrics_frame()
    assert list(frame["policy"]) == ["solver", "judge"] * 3 and list(frame["step"][::2]) == [
        1,
        2,
        3,
    ]
    assert list(frame["reward"][::2]) == [0.1, 0.2, 0.3] and math.isnan(frame["loss"][0])
    assert set(frame["pass_rate: easy"]) == {0.25}
    assert str(frame["time"][0]) == "2023-11-14 22:13:21+00:00"
    (row,) = run.evaluations_frame().to_dict("records")
    assert (row["set"], row["version: solver"], row["avg"]) == ("held_out", 2, 0.5)
    (folder / "metrics.jsonl").unlink()
    assert list(run.metrics_frame().columns) == ["time", "policy", "step"]


def test_a_picture_is_shown_and_written(folder: Path, tmp_path: Path) -> None:
    picture = astraflow_runtime.load_run(folder).plot()
    assert picture._repr_png_().startswith(b"\x89PNG")
    picture.figure.suptitle("mine")
    picture.save(tmp_path / "mine.svg")
    assert "<!-- mine -->" in (tmp_path / "mine.svg").read_text()


@pytest.mark.slow
def test_a_picture_is_saved_under_the_name_of_its_form(folder: Path, tmp_path: Path) -> None:
    picture = astraflow_runtime.load_run(folder).plot()
    picture.save(tmp_path / "A.PNG")
    assert (tmp_path / "A.PNG").read_bytes().startswith(b"\x89PNG")
    for name in ("curves", "curves.pdf", ".png"):
        with pytest.raises(UserError, match=r"written as \.png or \.svg; give a name that ends"):
            picture.save(tmp_path / name)
    for name in ("nowhere/a.png", "A.PNG/a.svg"):
        with pytest.raises(UserError, match=f"{name} cannot be written: "):
            picture.save(tmp_path / name)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[]", "is damaged: it is a JSON list, not an object"),
        ('{"name": "a"}', "it has no 'seed'"),
        ("{", "cannot be read"),
    ],
)
def test_a_damaged_summary_is_named(folder: Path, content: str, says: str) -> None:
    (folder / "summary.json").write_text(content)
    with pytest.raises(UserError, match=rf"summary\.json .*{says}"):
        astraflow_runtime.load_run(folder)


def test_what_is_missing_is_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = astraflow_runtime.load_run(folder)
    with pytest.raises(UserError, match="has no rollouts"):
        run.rollouts_frame()
    with pytest.raises(UserError, match=r"there is no run in .*give the directory"):
        astraflow_runtime.load_run(tmp_path / "nowhere")
    for module in ("pandas", "matplotlib"):
        monkeypatch.setitem(sys.modules, module, None)
    for frame in (run.metrics_frame, run.evaluations_frame, run.plot):
        with pytest.raises(UserError, match=r"pip install 'astraflow-runtime\[notebook\]'"):
            frame()
    html = run._repr_html_()  # of a run that goes on
    assert "solver: steps" in html and "it has not ended" in html and "<img" not in html
    assert run.state == "" and len(run.metrics) == 7
