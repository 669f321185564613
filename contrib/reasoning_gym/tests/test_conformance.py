from __future__ import annotations

from pathlib import Path

import pytest

from astraflow_core.types import Prompt
from astraflow_testing.conformance.prompt_source import PromptSourceConformance
from astraflow_testing.conformance.reward import RewardConformance
from astraflow_testing.conformance.subject import Subject, context, installed

SETS = {"products": {}, "gcd": {"min_value": 1, "max_value": 90}}


class TestPrompts(PromptSourceConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed(
            "prompt_source",
            "reasoning_gym",
            {"datasets": SETS, "size": 30},
            {"datasets": SETS, "size": 4, "split": "held_out", "seed": 3, "suffix": " Briefly."},
        )


class TestReward(RewardConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed(
            "reward", "reasoning_gym", {}, {"extract": "last_number"}, {"binary": False}
        )

    @pytest.fixture
    def prompts(self, tmp_path: Path) -> list[Prompt]:
        subject = installed("prompt_source", "reasoning_gym", {"datasets": SETS, "size": 2})
        (factory,) = subject.variants.values()
        source = factory(context("dataflow", tmp_path))
        return [source[0], source[1]]
