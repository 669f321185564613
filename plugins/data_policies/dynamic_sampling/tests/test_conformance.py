from __future__ import annotations

import pytest

from astraflow_testing.conformance.data_policy import DataPolicyConformance
from astraflow_testing.conformance.subject import Subject, installed


class TestDynamicSampling(DataPolicyConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed(
            "data_policy", "dynamic_sampling", {}, {"tolerance": 1e-5, "singletons": "keep"}
        )
