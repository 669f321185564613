"""What `astraflow simulate` predicts from a run, and what then really happens. Engine and trainer sleep most of the
time, so that the predictions hold on a loaded machine too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from astraflow_core.testing.runs import User

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
SLEEPY = (
    "run.steps=10",
    "raas.episodes=16",
    "policies.solver.engine.token_s=0.5",
    "policies.solver.trainer.step_s=0.8",
)
"""Two groups at a time in each RaaS, 1.5 s for each; four make a batch."""


def run(user: User, *changes: str) -> Path:
    """A whole run; its directory."""
    before = set(user.directory.glob("runs/*"))
    process = user.start(*user.table_arguments(*SLEEPY, *changes))
    ended = user.end(process, 200)
    assert ended.exit_code == 0, ended.text
    (directory,) = set(user.directory.glob("runs/*")) - before
    return directory


def simulate(user: User, source: Path, *options: str) -> dict[str, Any]:
    ended = user.astraflow("simulate", source, "--json", *options)
    assert ended.exit_code == 0, ended.text
    return dict(json.loads(ended.out))


def assert_near(predicted: Mapping[str, Any], happened: Mapping[str, Any]) -> None:
    """Within 15 %; staleness, which is whole versions, within half of one on average."""
    predicted, happened = predicted["policies"]["solver"], happened["policies"]["solver"]
    for figure in ("step_s", "rows_per_gpu_hour", "waiting_fraction"):
        assert predicted[figure] == pytest.approx(happened[figure], rel=0.15), figure
    assert mean(predicted["staleness"]) == pytest.approx(mean(happened["staleness"]), abs=0.5)


def mean(staleness: Mapping[str, int]) -> float:
    return sum(int(lag) * rows for lag, rows in staleness.items()) / sum(staleness.values())


def test_predictions_come_true(user: User) -> None:
    one = run(user, "run.max_staleness=1")
    told = simulate(user, one, "--replicas", "1..2", "--max-staleness", "0,1")
    assert_near(told["recorded_setting_predicted"], told["recorded"])
    others = {(p["replicas"], p["max_staleness"]): p for p in told["predictions"]}
    for replicas, bound in [(2, 1), (2, 0)]:
        directory = run(user, f"raas.replicas={replicas}", f"run.max_staleness={bound}")
        happened = simulate(user, directory)
        assert_near(others[replicas, bound], happened["recorded"])
        assert_near(happened["recorded_setting_predicted"], happened["recorded"])
    assert (
        others[2, 1]["policies"]["solver"]["step_s"]
        < told["recorded"]["policies"]["solver"]["step_s"] * 0.7
    )
