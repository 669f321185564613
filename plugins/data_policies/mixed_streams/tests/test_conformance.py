from __future__ import annotations

import pytest

from astraflow_testing.conformance.data_policy import DataPolicyConformance
from astraflow_testing.conformance.subject import Subject, installed


class TestMixedStreams(DataPolicyConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed(
            "data_policy",
            "mixed_streams",
            {"source": "verifier"},
            {"source": "verifier", "ratio": 1},
        )
