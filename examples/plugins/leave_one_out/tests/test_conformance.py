"""``leave_one_out`` keeps what every algorithm promises, and has the baseline that it claims."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from astraflow_plugin_leave_one_out.algorithm import LeaveOneOut, LeaveOneOutConfig

from astraflow_core.types import Batch
from astraflow_testing.conformance.algorithm import AlgorithmConformance
from astraflow_testing.conformance.manifest import ManifestConformance
from astraflow_testing.conformance.subject import Subject, context, installed


class TestManifest(ManifestConformance):
    @pytest.fixture
    def manifest(self) -> str:
        return "astraflow_plugin_leave_one_out.manifest"


class TestLeaveOneOut(AlgorithmConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed("algorithm", "leave_one_out", {}, {"ratio_cap": 1.2})


def test_the_baseline_is_the_mean_of_the_others(tmp_path: Path) -> None:
    rewards = np.array([1.0, 0.0, 0.25, 4.0], np.float32)
    ones = np.ones(4, np.int32)
    batch = Batch(
        id="b", policy="solver", version=1,
        lengths=2 * ones, tokens=np.arange(8, dtype=np.int32),
        loss_mask=np.tile([False, True], 4), logprobs=np.zeros(8, np.float32),
        versions=np.tile(np.array([-1, 0], np.int32), 4), rewards=rewards,
        group=np.array([0, 0, 0, 1]), trajectory=np.arange(4),
        group_size=np.array([3, 3, 3, 1], np.int32),
        group_mean=np.array([1.25 / 3] * 3 + [4.0], np.float32), group_std=np.zeros(4, np.float32),
    )  # fmt: skip
    algorithm = LeaveOneOut(LeaveOneOutConfig(), context("trainer", tmp_path))
    expected = [1 - 0.125, 0 - 0.625, 0.25 - 0.5, 0]  # a group of one has no others
    np.testing.assert_allclose(algorithm.advantages(batch)[1::2], expected, rtol=1e-6)
    assert not algorithm.advantages(batch)[::2].any()
