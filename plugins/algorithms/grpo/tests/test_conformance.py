from __future__ import annotations

import pytest

from astraflow_core.testing.conformance.algorithm import AlgorithmConformance
from astraflow_core.testing.conformance.subject import Subject, installed


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
