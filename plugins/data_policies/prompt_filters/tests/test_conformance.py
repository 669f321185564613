from __future__ import annotations

import pytest

from astraflow_core.types import Prompt
from astraflow_testing.conformance.data_policy import DataPolicyConformance
from astraflow_testing.conformance.subject import Subject, installed


class TestSolvedFilter(DataPolicyConformance):
    @pytest.fixture
    def component(self) -> Subject:
        eager = {"solved": 0.6, "memory": 0.1, "revisit": 0.3}
        return installed("data_policy", "solved_filter", {}, eager)


class TestCurriculum(DataPolicyConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed(
            "data_policy",
            "curriculum",
            {},
            {"low": 0.4, "high": [[0, 0.5], [20, 0.9]], "explore": 0.3},
            {"by": "length", "high": [[0, 16], [10, 40]], "explore": 0.2},
            {"by": "field", "field": "level", "low": [[0, 0], [10, 4]], "high": 5},
        )

    @pytest.fixture
    def prompts(self) -> list[Prompt]:
        return [Prompt(f"p{n}", {"prompt": "?" * (10 + n), "level": n % 6}) for n in range(12)]


class TestMixing(DataPolicyConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed(
            "data_policy",
            "mixing",
            {"weights": {"math": 3, "code": 1}},
            {"weights": {"math": [[0, 1], [12, 0]], "code": 1, "none": 5}},
        )

    @pytest.fixture
    def prompts(self) -> list[Prompt]:
        return [Prompt(f"p{n}", {"source": "code" if n % 3 else "math"}) for n in range(12)]


class TestQuarantine(DataPolicyConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed("data_policy", "quarantine", {}, {"after": 1, "rest": 4})
