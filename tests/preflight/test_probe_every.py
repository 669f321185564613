"""``[run] probe_every``: a run measures how far the log-probs of engine and trainer are apart."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from astraflow_testing.runs import EndedCommand, User
from astraflow_testing.table import POSITIONS
from astraflow_tiny_model.folder import ALPHABET, write_tiny_model

HERE = Path(__file__).parent

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture
def probing(user: User) -> User:
    """A user whose runs find the engines beside this file."""
    path = [str(HERE), user.environment.get("PYTHONPATH", "")]
    user.environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    return user


def run_of(user: User, engine: str, *overrides: str) -> EndedCommand:
    """A synchronous run, in which every version is served before the next comes."""
    model = write_tiny_model(user.directory / "model", hidden=8, layers=1, heads=1, kv_heads=1)
    logits = np.random.default_rng(0).normal(0, 1.5, (POSITIONS, len(ALPHABET)))
    save_file({"logits": logits.astype(np.float32)}, model / "model.safetensors")
    return user.run_table(
        f"policies.solver.model={model}",
        f"policies.solver.engine.use=wrong_engines:{engine}",
        "policies.solver.trainer.lr=1.0",
        "run.max_staleness=0",
        *overrides,
        deadline_s=90,
    )


def run(user: User, engine: str, *overrides: str) -> list[dict[str, float]]:
    """Metrics of each step of such a run."""
    ended = run_of(user, engine, *overrides)
    assert ended.exit_code == 0, ended.text
    lines = (ended.run_directory / "metrics.jsonl").read_text().splitlines()
    return [line["metrics"] for text in lines if "metrics" in (line := json.loads(text))]


def test_the_gap_is_among_the_metrics(probing: User) -> None:
    steps = run(probing, "Scoring", "run.probe_every=2", "policies.solver.trainer.step_s=0.2")
    last = steps[-1]
    assert len(steps) == 8 and "probe_mean" not in steps[0]
    assert last["probe_version"] >= 2 and last["probe_version"] % 2 == 0
    assert 0 <= last["probe_mean"] <= last["probe_largest"] < 1e-5


def test_wrong_log_probs_show(probing: User) -> None:
    steps = run(probing, "ShiftedScores", "run.probe_every=1", "policies.solver.trainer.step_s=0.2")
    assert steps[-1]["probe_mean"] > 0.5


def test_without_it_nothing_is_measured(probing: User) -> None:
    assert not any("probe_mean" in step for step in run(probing, "Scoring"))


def test_an_engine_that_cannot_score_is_refused(run_here: Callable[..., EndedCommand]) -> None:
    ended = run_here("run.probe_every=1")
    assert ended.exit_code == 2
    assert "run.probe_every: needs engine capability score" in ended.text


def test_weights_that_never_arrive_end_the_run(probing: User) -> None:
    ended = run_of(
        probing,
        "KeepsItsFirstWeights",
        "run.probe_every=1",
        "run.steps=40",
        "launcher.restarts=0",
        "policies.solver.trainer.step_s=0.2",
    )
    assert ended.exit_code == 1
    assert "did not reach the engine of policy 'solver'" in ended.text
    assert "a restart did not help" in ended.text
