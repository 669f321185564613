from __future__ import annotations

import pytest

from astraflow_testing.conformance.manifest import ManifestConformance
from astraflow_testing.conformance.reward import RewardConformance
from astraflow_testing.conformance.subject import Subject, installed
from astraflow_testing.scripted_policies import Says

CRITERIA = "The answer is right and says why."


class TestManifest(ManifestConformance):
    @pytest.fixture
    def manifest(self) -> str:
        return "astraflow_contrib_rubrics.manifest"


class TestFormat(RewardConformance):
    @pytest.fixture
    def component(self) -> Subject:
        demands = {
            "pattern": r"(So )?(\s*\S+)*?\s*",
            "tags": ["think", "answer"],
            "one_box": True,
            "json_keys": [],
            "ended": True,
        }
        return installed(
            "reward", "format", {"one_box": True}, {**demands, "partial": True, "each_policy": True}
        )


@pytest.mark.slow
class TestLengthPenalty(RewardConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed(
            "reward",
            "length_penalty",
            {"max_tokens": 8},
            {"max_tokens": 16, "form": "cosine", "each_policy": True},
            {"max_tokens": 16, "form": "linear", "short": 1.0, "long": 0.0},
        )


class TestRubric(RewardConformance):
    @pytest.fixture
    def component(self) -> Subject:
        parts = {
            "right": {"use": "numeric"},
            "form": {"use": "format", "one_box": True, "weight": 0.1},
            "length": {"use": "length_penalty", "max_tokens": 8, "each_policy": True},
        }
        return installed("reward", "rubric", {"parts": parts}, {"parts": {"one": parts["right"]}})


@pytest.mark.slow
class TestJudge(RewardConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed("reward", "judge", {"engine": "critic", "rubric": CRITERIA})

    @pytest.fixture
    def frozen(self) -> tuple[str, ...]:
        return ("critic",)

    @pytest.fixture
    def says(self) -> Says:
        return lambda engine, asked: f"It is as it is.\nVerdict: {len(asked) % 11}"
