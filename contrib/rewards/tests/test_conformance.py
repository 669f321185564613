from __future__ import annotations

import pytest

from astraflow_testing.conformance.reward import RewardConformance
from astraflow_testing.conformance.subject import Subject, installed


class TestExact(RewardConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed("reward", "exact", {}, {"partial": "positions", "each_policy": True})


class TestNumeric(RewardConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed("reward", "numeric", {}, {"each_policy": True})
