from __future__ import annotations

import pytest

from astraflow_testing.conformance.data_policy import DataPolicyConformance
from astraflow_testing.conformance.subject import Subject, installed


class TestThreeZones(DataPolicyConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed(
            "data_policy", "three_zones", {}, {"every": 1, "min_replicas": 2, "max_replicas": 6}
        )
