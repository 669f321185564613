"""``mastered`` keeps what every data policy promises, and rests what it says it rests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from astraflow_plugin_mastered.policy import Mastered, MasteredConfig

from astraflow_core.types import GroupSummary, Prompt
from astraflow_testing.conformance.data_policy import DataPolicyConformance
from astraflow_testing.conformance.manifest import ManifestConformance
from astraflow_testing.conformance.subject import Subject, context, installed


class TestManifest(ManifestConformance):
    @pytest.fixture
    def manifest(self) -> str:
        return "astraflow_plugin_mastered.manifest"


class TestMastered(DataPolicyConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed("data_policy", "mastered", {}, {"after": 3, "reward": 0.5, "revisit": 0.3})


def group(prompt: Prompt, *rewards: float, policy: str = "solver") -> GroupSummary:
    ones = np.ones(len(rewards), np.int32)
    return GroupSummary(
        policy, prompt, np.array(rewards), 4 * ones, ones, ones, ones.astype(bool), 1
    )


def test_a_prompt_rests_when_solved_again_and_again_and_wakes_by_a_failure(tmp_path: Path) -> None:
    config = MasteredConfig(after=2, revisit=0.001, policy="solver")
    policy = Mastered(config, context("dataflow", tmp_path))
    easy, hard = Prompt("easy"), Prompt("hard")
    for rewards in ((1.0, 1.0), (1.0, 2.0)):
        assert policy.admit(easy)
        assert policy.accept(group(easy, *rewards)).accepted
        assert policy.accept(group(hard, 1.0, 0.5)).accepted
    assert [policy.admit(easy) for _ in range(5)] == [False] * 5
    assert policy.admit(hard)
    assert policy.metrics() == {"solved": 1.0, "rested": 5.0}
    policy.accept(group(easy, 0.0, 0.0, policy="verifier"))
    assert not policy.admit(easy)
    policy.accept(group(easy, 1.0, 0.0))
    assert policy.admit(easy)


def test_resting_prompts_are_tried_again_at_the_rate_asked_for(tmp_path: Path) -> None:
    policy = Mastered(MasteredConfig(revisit=0.25), context("dataflow", tmp_path))
    easy = Prompt("easy")
    policy.accept(group(easy, 1.0))
    admitted = sum(policy.admit(easy) for _ in range(4000))
    assert 850 < admitted < 1150
