from __future__ import annotations

import pytest

from astraflow_testing.conformance.manifest import ManifestConformance
from astraflow_testing.conformance.reward import RewardConformance
from astraflow_testing.conformance.subject import Subject, installed


class TestManifest(ManifestConformance):
    @pytest.fixture
    def manifest(self) -> str:
        return "astraflow_contrib_math_verify.manifest"


class TestMathVerify(RewardConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed("reward", "math_verify", {}, {"each_policy": True})
