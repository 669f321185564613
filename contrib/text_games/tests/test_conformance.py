from __future__ import annotations

import pytest

from astraflow_testing.conformance.prompt_source import PromptSourceConformance
from astraflow_testing.conformance.subject import Subject, installed


class TestLevels(PromptSourceConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed(
            "prompt_source",
            "game_levels",
            {"game": "key_door"},
            {"game": "binary_search", "split": "held_out", "seed": 3},
        )
