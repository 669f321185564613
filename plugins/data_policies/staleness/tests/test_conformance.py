from __future__ import annotations

import pytest

from astraflow_testing.conformance.data_policy import DataPolicyConformance
from astraflow_testing.conformance.subject import Subject, installed


class TestStalenessDecay(DataPolicyConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed("data_policy", "staleness_decay", {}, {"decay": 0.9})


class TestStalenessThrottle(DataPolicyConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed("data_policy", "staleness_throttle", {}, {"target": 0.1, "first": 2})
