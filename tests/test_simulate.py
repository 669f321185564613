"""What `astraflow simulate` predicts from a run, and what then really happens. Engine and trainer sleep most of the
time, so that the predictions hold on a loaded machine too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from astraflow_testing.runs import TABLE_RUN, User

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
SLEEPY = (
    "run.steps=10",
    "raas.max_concurrent_episodes=16",
    "policies.solver.engine.token_s=0.5",
    "policies.solver.trainer.step_s=0.8",
)
"""Two groups at a time in each RaaS, 1.5 s for each; four make a batch."""

SOLVER = TABLE_RUN[TABLE_RUN.index("[policies.solver]") : TABLE_RUN.index("[raas]")]
SHARED = 'data = [{ use = "mixed_streams", source = "solver", ratio = 1 }]\n'
TWO_TRAINERS = (
    TABLE_RUN.replace('use = "single_turn"', 'use = "single_turn"\npolicy = "solver"')
    + SOLVER.replace("solver", "verifier")
    + SHARED
)
"""All rollouts are the solver's; the verifier trains on them too."""


def run(user: User, *changes: str, config: str = TABLE_RUN) -> Path:
    """A whole run; its directory."""
    before = set(user.directory.glob("runs/*"))
    process = user.start(*user.table_arguments(*SLEEPY, *changes, config=config))
    ended = user.end(process, 200)
    assert ended.exit_code == 0, ended.text
    (directory,) = set(user.directory.glob("runs/*")) - before
    return directory


def simulate(user: User, source: Path, *options: str) -> dict[str, Any]:
    ended = user.astraflow("simulate", "--run", source, "--json", *options)
    assert ended.exit_code == 0, ended.text
    return dict(json.loads(ended.out))


def assert_near(
    predicted: Mapping[str, Any], happened: Mapping[str, Any], policy: str = "solver"
) -> None:
    """Within 15 %; staleness, which is whole versions, within half of one on average."""
    predicted, happened = predicted["policies"][policy], happened["policies"][policy]
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


def test_two_trainers_that_share_a_stream(user: User) -> None:
    """Each trains on all that the solver samples, and no more is rolled out than for one."""
    directory = run(
        user,
        "run.steps=8",
        "run.max_staleness=1",
        "policies.verifier.trainer.step_s=0.4",
        config=TWO_TRAINERS,
    )
    status = json.loads((directory / "status.json").read_text())
    assert status["invariants_ok"]
    solver, verifier = status["policies"]["solver"], status["policies"]["verifier"]
    assert verifier["rows"]["accepted"] == solver["borrowed"]["lent"] == 0
    assert verifier["borrowed"]["trained"] == solver["rows"]["trained"] == 8 * 32
    assert verifier["max_staleness_seen"] <= 1
    told = simulate(user, directory)
    for policy in ("solver", "verifier"):
        assert_near(told["recorded_setting_predicted"], told["recorded"], policy)
