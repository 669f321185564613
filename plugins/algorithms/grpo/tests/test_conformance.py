from __future__ import annotations

import json
import runpy
from pathlib import Path

import numpy as np
import pytest

from astraflow_core.testing.conformance.algorithm import AlgorithmConformance
from astraflow_core.testing.conformance.subject import Subject, installed

HERE = Path(__file__).parent


class TestGrpo(AlgorithmConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed(
            "algorithm",
            "grpo",
            {},
            {"kl_coef": 0.05, "entropy_coef": 0.01, "clip_high": 0.28},
            {"normalize_std": False, "entropy_coef": [[0, 0.1], [40, 0.0]]},
        )

    @pytest.fixture
    def golden(self) -> Path:
        return HERE / "golden.json"


def test_the_golden_values_are_those_of_their_formulas() -> None:
    kept = json.loads((HERE / "golden.json").read_text(encoding="utf-8"))["cases"]
    made = runpy.run_path(str(HERE / "golden.py"))["made"]()["cases"]
    assert [case["variant"] for case in kept] == [case["variant"] for case in made]
    for one, other in zip(kept, made, strict=True):
        assert one["given"] == other["given"]
        for part in ("advantages", "gradient"):
            np.testing.assert_allclose(
                one["expected"][part], other["expected"][part], rtol=1e-12, atol=1e-15
            )
    clipped = [case["expected"]["metrics"]["clip_fraction"] for case in kept]
    assert max(clipped) > 0.1, "nothing is clipped, so the clip is not examined"
