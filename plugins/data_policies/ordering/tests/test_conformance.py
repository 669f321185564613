from __future__ import annotations

import pytest

from astraflow_testing.conformance.data_policy import DataPolicyConformance
from astraflow_testing.conformance.subject import Subject, installed


class TestOrdering(DataPolicyConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed(
            "data_policy", "ordering", {"by": "edf"}, {"by": "fifo"}, {"by": "surprise"}
        )
