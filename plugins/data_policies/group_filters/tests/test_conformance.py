from __future__ import annotations

import pytest

from astraflow_testing.conformance.data_policy import DataPolicyConformance
from astraflow_testing.conformance.subject import Subject, installed


class TestRewardFilter(DataPolicyConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed("data_policy", "reward_filter", {"low": 0.2}, {"of": "std", "low": 0.1})


class TestLengthFilter(DataPolicyConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed("data_policy", "length_filter", {"high": 20}, {"of": "mean", "low": 2})


class TestOverlongFilter(DataPolicyConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed("data_policy", "overlong_filter", {}, {"most": 0})


class TestPartialGroups(DataPolicyConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed("data_policy", "partial_groups", {}, {"at_least": 4})


class TestAcceptAll(DataPolicyConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed("data_policy", "accept_all")
