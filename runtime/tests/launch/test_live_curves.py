"""The curves of a run that continues."""

from __future__ import annotations

from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest
from launch_support import Table, parsed

from astraflow_core.errors import UserError
from astraflow_runtime.launch.planning.prepare import prepare
from astraflow_runtime.launch.planning.resume import resume
from astraflow_runtime.launch.results.live_curves import VARIABLE, LiveCurves
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
