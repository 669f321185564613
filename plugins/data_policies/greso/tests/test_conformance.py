from __future__ import annotations

import pytest

from astraflow_testing.conformance.data_policy import DataPolicyConformance
from astraflow_testing.conformance.subject import Subject, installed


class TestGreso(DataPolicyConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed("data_policy", "greso", {}, {"p_easy": 0.1, "step": 0.2, "target_easy": 0})


class TestGresoRepository(DataPolicyConformance):
    @pytest.fixture
    def component(self) -> Subject:
        rounds = {"sampling_batch": 12, "train_sequences": 24, "smallest_batch": 2}
        return installed("data_policy", "greso_repository", {}, {"step": 0.2, **rounds})
