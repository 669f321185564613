from __future__ import annotations

import pytest

from astraflow_testing.conformance.data_policy import DataPolicyConformance
from astraflow_testing.conformance.subject import Subject, installed


class TestReplay(DataPolicyConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed(
            "data_policy",
            "replay",
            {},
            {"selector": "uniform", "ratio": 0.25, "pool_size": 12},
            {"selector": "prioritised", "ratio": 0.75, "reuse_limit": 2, "max_staleness": 3},
        )
