"""The curves of a run that continues."""

from __future__ import annotations

import json
import tracemalloc
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest
from launch_support import Table, parsed

from astraflow_core.errors import UserError
from astraflow_runtime.launch.planning.prepare import prepare
from astraflow_runtime.launch.planning.resume import resume
from astraflow_runtime.launch.results import curves
from astraflow_runtime.launch.results.live_curves import VARIABLE, LiveCurves
from astraflow_runtime.launch.results.metrics import MetricsFile, read_metrics
from astraflow_wire.policy_status import PolicyStatus
from astraflow_wire.status import Status

LINE = '{"time": 1, "policy": "solver", "step": 1, "reward": 0.5, "metrics": {"loss": 2.0}}\n'


@pytest.fixture
def undrawn() -> None:
    """Curves are drawn here."""


def test_a_run_whose_environment_says_none_draws_none(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "none")
    drawn = LiveCurves(parsed(table), tmp_path)
    (tmp_path / "metrics.jsonl").write_text(LINE)
    drawn.look(made(1))
    drawn.close()
    assert not (tmp_path / "curves.png").exists()
    monkeypatch.setenv(VARIABLE, "0")
    with pytest.raises(UserError, match=f"{VARIABLE} is '0'; expected none, or unset it"):
        prepare(table)
    with pytest.raises(UserError, match=f"{VARIABLE} is '0'"):
        resume(tmp_path)


def made(updates: int) -> Status:
    return Status(policies={"solver": PolicyStatus(updates=updates)})


@pytest.mark.slow
def test_curves_are_drawn_while_a_run_continues_and_not_often(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture, time = tmp_path / "curves.png", [100.0]
    config = parsed(table)
    drawn = LiveCurves(config, tmp_path, lambda: time[0])
    assert drawn.look(made(0)) == ""
    drawn.close()
    assert not picture.exists()
    drawn = LiveCurves(config, tmp_path, lambda: time[0])
    (tmp_path / "metrics.jsonl").write_text(LINE)
    drawn.look(made(1))
    drawn.close()
    assert picture.read_bytes().startswith(b"\x89PNG")
    drawn = LiveCurves(config, tmp_path, lambda: time[0])
    titles: list[str] = []
    monkeypatch.setattr(
        "astraflow_runtime.launch.results.curves.draw_curves",
        lambda metrics, title, bound, path: titles.append(title),
    )

    def look(updates: int) -> str:
        said = drawn.look(made(updates))
        if drawn._drawing is not None:
            wait([drawn._drawing])
        return said

    for updates, at in ((1, 100.0), (2, 100.0), (2, 129.0), (2, 131.0), (2, 500.0)):
        time[0] = at
        look(updates)
    assert titles == ["fake, seed 0: 1 of 20 steps"] * 2

    def broken(*_: Any) -> None:
        raise ValueError("no font")

    monkeypatch.setattr("astraflow_runtime.launch.results.curves.draw_curves", broken)
    time[0] = 1000.0
    assert look(3) == ""
    assert look(3) == "curves.png is no longer updated during the run: ValueError('no font')"
    assert look(4) == ""
    drawn.close()


NAMES = (
    "reward", "reward_std", "pass_rate", "staleness_mean", "staleness_max", "completion_length_mean",
    "completion_length_max", "truncated_fraction", "equal_groups_fraction", "entropy", "entropy_estimate", "kl",
    "approx_kl", "grad_norm", "wait_s", "update_s", *(f"other_{number}" for number in range(40)),
)  # fmt: skip
STEPS = 200


def test_the_same_lines_are_drawn_from_a_part_of_the_file(tmp_path: Path) -> None:
    """And that part takes little memory, since a run may be long."""

    def step(number: int) -> dict[str, Any]:
        figures = {name: number + place / 100 for place, name in enumerate(NAMES)}
        return {"time": number, "policy": "solver", "step": number, "metrics": figures}

    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(json.dumps(step(number)) + "\n" for number in range(1, STEPS + 1)))

    def points(metrics: MetricsFile) -> list[list[Any]]:
        return [
            [line.get_xydata().tolist() for line in axis.get_lines()]
            for axis in curves.figure_of(metrics, "", 1).axes
        ]

    def read_within(*only: Any) -> tuple[MetricsFile, int]:
        tracemalloc.start()
        try:
            return read_metrics(tmp_path, *only), tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    whole, most = read_within()
    part, least = read_within(curves.DRAWN)
    assert points(part) == points(whole)
    assert sum(len(line) for axis in points(part) for line in axis) >= 16 * STEPS
    assert least < most / 4
