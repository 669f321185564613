"""A whole run with ``batch_invariant``: no probe finds a gap, and one with another order of sums ends at the first."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from astraflow_testing.runs import EndedCommand, User

HERE = Path(__file__).parent
EXAMPLE = HERE.parent.parent / "examples" / "quickstart.toml"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.backend,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("heavy_imports"),
]


def run(user: User, *overrides: str) -> EndedCommand:
    """Three updates of the quickstart, synchronous, so that each version is served and probed."""
    path = [str(HERE), user.environment.get("PYTHONPATH", "")]
    user.environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    given = (
        "run.steps=3",
        "run.probe_every=1",
        "run.max_staleness=0",
        "raas.replicas=1",
        "policies.solver.batch_sequences=256",
        "policies.solver.engine.batch_invariant=true",
        "policies.solver.trainer.batch_invariant=true",
        *overrides,
    )
    sets = [part for override in given for part in ("--set", override)]
    return user.astraflow("run", EXAMPLE, *sets, deadline_s=280)


def test_every_probe_finds_a_gap_of_zero(user: User) -> None:
    ended = run(user)
    assert ended.exit_code == 0, ended.text
    lines = (ended.run_directory / "metrics.jsonl").read_text().splitlines()
    steps = [line["metrics"] for text in lines if "metrics" in (line := json.loads(text))]
    probed = [step for step in steps if "probe_largest" in step]
    assert probed and {step["probe_largest"] for step in probed} == {0.0}


def test_another_order_of_sums_ends_the_run_by_name(user: User) -> None:
    ended = run(user, "policies.solver.engine.use=wrong_order:ShorterBlocks")
    assert ended.exit_code != 0
    assert "log-probs of engine and trainer are not equal" in ended.text
    assert "version 1 of " in ended.text
