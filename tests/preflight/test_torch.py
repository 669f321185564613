"""The doctor on a model with a framework: engine and trainer agree, and a mistake shows."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from astraflow_testing.runs import User

HERE = Path(__file__).parent
EXAMPLE = HERE.parent.parent / "examples" / "quickstart.toml"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.backend,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("heavy_imports"),
]


def doctor(user: User, code: int, *arguments: str) -> dict[str, Any]:
    """Findings of the quickstart by subject."""
    path = [str(HERE), str(HERE.parent / "mutants"), user.environment.get("PYTHONPATH", "")]
    user.environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    ended = user.astraflow("doctor", EXAMPLE, "--json", *arguments, deadline_s=280)
    assert ended.exit_code == code, ended.text
    assert user.left_running() == []
    found = {f["subject"].removeprefix("policies.solver "): f for f in json.loads(ended.out)}
    assert all(f["fix"] for f in found.values() if f["level"] == "problem")
    return found


def test_the_quickstart_is_sound(user: User) -> None:
    found = doctor(user, 0)
    for subject in ("log-probs", "score", "log-probs as the run samples", "drift"):
        assert found[subject]["level"] == "ok"
        assert found[subject]["figures"]["largest"] < 1e-4
    assert found["weights"]["figures"]["tensors"] > 10
    assert "with the sampling temperature applied" in found["semantics of temperature"]["text"]


def test_a_gap_over_the_threshold_is_a_problem(user: User) -> None:
    """An engine in bfloat16 beside a trainer in float32 is within the usual bound, not within a narrow one."""
    low = ("--set", "policies.solver.engine.dtype=bfloat16")
    found = doctor(user, 2, *low, "--max-gap", "1e-5")
    assert found["log-probs"]["level"] == "problem"
    assert found["log-probs"]["figures"]["mean"] > 1e-5


def test_a_wrong_engine_is_found(user: User) -> None:
    found = doctor(user, 2, "--set", "policies.solver.engine.use=wrong_torch:ShiftedAndNeverLoads")
    assert found["log-probs"]["level"] == "ok"
    assert found["score"]["level"] == found["swap"]["level"] == "problem"
    assert found["swap"]["text"].endswith("were loaded, and the log-probs stayed")
