from __future__ import annotations

import json
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from astraflow_testing.conformance.algorithm import AlgorithmConformance
from astraflow_testing.conformance.subject import Subject, installed

HERE = Path(__file__).parent


class TestGrpo(AlgorithmConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed(
            "algorithm",
            "grpo",
            {},
            {"kl_coef": 0.05, "entropy_coef": 0.01, "clip_high": 0.28},
            {"normalize_std": False, "entropy_coef": [[0, 0.1], [40, 0.0]]},
            {"proximal": "recompute", "corrections": [{"mode": "truncate", "high": 1.2}]},
        )

    @pytest.fixture
    def golden(self) -> Path:
        return HERE / "golden.json"


ALL: dict[str, Any] = {"kl_coef": 0.05, "entropy_coef": 0.01}
RECOMPUTE: dict[str, Any] = {"proximal": "recompute"}
DETACHED = {
    "test_the_gradient_is_that_of_the_loss": "the weight has no gradient: that is the algorithm"
}


class TestDrGrpo(AlgorithmConformance):
    @pytest.fixture
    def component(self) -> Subject:
        longest = {"max_tokens": 12}
        return installed("algorithm", "dr_grpo", longest, longest | ALL | RECOMPUTE)


class TestDapo(AlgorithmConformance):
    @pytest.fixture
    def component(self) -> Subject:
        shaped = {"overlong": "piecewise", "max_tokens": 6, "overlong_tokens": 3}
        return installed("algorithm", "dapo", {}, shaped | ALL, shaped | RECOMPUTE)


class TestRloo(AlgorithmConformance):
    @pytest.fixture
    def component(self) -> Subject:
        options = {"aggregation": "prompt_mean", "off_policy_delta": 0.05}
        rows = {"ratio_level": "sequence", "normalize_std": True, "std_of": "batch"}
        return installed("algorithm", "rloo", {}, ALL | RECOMPUTE, options, rows)


class TestOpo(AlgorithmConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed("algorithm", "opo", {}, ALL | RECOMPUTE, {"group_unit": "trajectory"})


class TestOtb(AlgorithmConformance):
    expected_failures: ClassVar[Mapping[str, str]] = {
        "test_advantages_read_the_stamped_statistics": "baselines of tokens need the other rows"
    }

    @pytest.fixture
    def component(self) -> Subject:
        other = {"zero_tail": False, "outcome": "whole"}
        in_reward = {"kl_coef": 0.05, "kl_in": "reward"}
        return installed("algorithm", "otb", {}, other | ALL | RECOMPUTE, in_reward)


class TestReinforcePp(AlgorithmConformance):
    @pytest.fixture
    def component(self) -> Subject:
        group = {"baseline": "group", "gamma": 0.9}
        reset = group | {"holes": "reset", "group_unit": "trajectory"}
        return installed("algorithm", "reinforce_pp", {}, reset, ALL, ALL | group | RECOMPUTE)


class TestTurnGrpo(AlgorithmConformance):
    @pytest.fixture
    def component(self) -> Subject:
        other = {"estimator": "cumulative", "gamma": 0.9, "normalize_std": False}
        return installed(
            "algorithm", "turn_grpo", {}, other | ALL | RECOMPUTE, {"outcome": "whole"}
        )


class TestGigpo(AlgorithmConformance):
    @pytest.fixture
    def component(self) -> Subject:
        other = {"mode": "mean_std_norm", "episode_unit": "trajectory", "outcome": "whole"}
        in_reward = {"kl_coef": 0.05, "kl_in": "reward"}
        return installed("algorithm", "gigpo", {}, other | ALL | RECOMPUTE, in_reward)


class TestReinforce(AlgorithmConformance):
    @pytest.fixture
    def component(self) -> Subject:
        other = {"baseline": "turn", "whiten": "token"}
        return installed("algorithm", "reinforce", {}, other | ALL | RECOMPUTE, {"whiten": "turn"})


class TestCispo(AlgorithmConformance):
    expected_failures: ClassVar[Mapping[str, str]] = DETACHED

    @pytest.fixture
    def component(self) -> Subject:
        return installed(
            "algorithm", "cispo", {}, {"clip_low": 0.1, "clip_high": 0.1} | ALL | RECOMPUTE
        )


class TestGspo(AlgorithmConformance):
    @pytest.fixture
    def component(self) -> Subject:
        token = {"form": "token", "aggregation": "seq_mean_token_mean"}
        return installed("algorithm", "gspo", {}, token, {"clip_high": 0.1} | ALL | RECOMPUTE)


class TestSapo(AlgorithmConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed("algorithm", "sapo", {}, {"ratio_level": "geometric"} | ALL | RECOMPUTE)


class TestGpg(AlgorithmConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed("algorithm", "gpg", {}, {"scale": "none"} | ALL | RECOMPUTE)


class TestMaxRl(AlgorithmConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed("algorithm", "maxrl", {}, {"group_unit": "trajectory"} | ALL | RECOMPUTE)


class TestGdpo(AlgorithmConformance):
    @pytest.fixture
    def component(self) -> Subject:
        rewards = {"rewards": {"correct": 1.0, "form": 0.5}}
        rows = {"whiten": "row", "singleton_advantage": "reward"}
        return installed("algorithm", "gdpo", rewards, rewards | rows | ALL | RECOMPUTE)


class TestDppo(AlgorithmConformance):
    expected_failures: ClassVar[Mapping[str, str]] = DETACHED

    @pytest.fixture
    def component(self) -> Subject:
        kl = {"divergence": "kl", "divergence_low": 1e-3, "divergence_high": 1e-3}
        return installed("algorithm", "dppo", {}, kl | ALL | RECOMPUTE)


class TestPrimeRl(AlgorithmConformance):
    expected_failures: ClassVar[Mapping[str, str]] = {
        "test_without_advantages_nothing_is_learned": "the square of the log-ratio counts without them",
    }

    @pytest.fixture
    def component(self) -> Subject:
        narrow = {"mask_low": 1e-3, "mask_high": 1e-3, "advantage_coef": 0.5}
        return installed("algorithm", "prime_rl", {}, narrow | ALL | RECOMPUTE)


class TestFlashReinforce(AlgorithmConformance):
    expected_failures: ClassVar[Mapping[str, str]] = DETACHED

    @pytest.fixture
    def component(self) -> Subject:
        return installed("algorithm", "flash_reinforce", {}, {"delta": "none"} | ALL | RECOMPUTE)


class TestDecoupledPpo(AlgorithmConformance):
    @pytest.fixture
    def component(self) -> Subject:
        rows = [
            {"mode": "mask", "level": "geometric", "low": 0.9, "high": 1.1},
            {"mode": "truncate", "level": "sequence", "high": 1.5},
            {"mode": "reject", "high": 1.3},
            {"mode": "reject", "level": "sequence", "estimator": "k3", "high": 0.2},
        ]
        return installed("algorithm", "decoupled_ppo", {}, ALL | {"corrections": rows})


class TestDecoupledPpoInterpolated(AlgorithmConformance):
    expected_failures: ClassVar[Mapping[str, str]] = {
        "test_the_gradient_is_that_of_the_loss": "the interpolated policy has no gradient",
        "test_capabilities_are_used": "an interpolated policy needs no pass",
    }

    @pytest.fixture
    def component(self) -> Subject:
        return installed("algorithm", "decoupled_ppo", {"proximal": "loglinear"})


class TestM2po(AlgorithmConformance):
    expected_failures: ClassVar[Mapping[str, str]] = {
        "test_the_gradient_is_that_of_the_loss": "the token that gives the bound stands on it, where the "
        "loss has a kink (test_reference.py leaves out that token alone)",
    }

    @pytest.fixture
    def component(self) -> Subject:
        areal = {"variant": "mask_areal"} | RECOMPUTE
        repository = {"variant": "clip_range_m2po_repo", "threshold": 0.5}
        return installed("algorithm", "m2po", {}, repository | ALL, areal)


class TestM2poAsPublished(AlgorithmConformance):
    cut = "the threshold holds in each micro-batch, as published"
    expected_failures: ClassVar[Mapping[str, str]] = {
        "test_the_gradient_is_that_of_the_loss": "the bounds and the mask have no gradient",
        "test_the_cut_into_micro_batches_does_not_matter": cut,
        "test_capabilities_are_used": "no pass is needed for it",
    }

    @pytest.fixture
    def component(self) -> Subject:
        micro = {"scope": "micro_batch"}
        areal = {"variant": "mask_areal", "threshold": 0.02} | RECOMPUTE | micro
        repository = {"variant": "clip_range_m2po_repo", "threshold": 0.02}
        return installed("algorithm", "m2po", micro, repository | micro | ALL, areal)


class TestPpoOverTurns(AlgorithmConformance):
    expected_failures: ClassVar[Mapping[str, str]] = {
        "test_capabilities_are_used": "what TestPpo needs is examined there",
    }

    @pytest.fixture
    def component(self) -> Subject:
        turns = {"gae_unit": "turn", "gae_scope": "trajectory", "gamma": 0.9, "lam": 0.8}
        return installed("algorithm", "ppo", turns, turns | {"sequence_rewards": "each"})


class TestPpo(AlgorithmConformance):
    @pytest.fixture
    def component(self) -> Subject:
        other = {"gamma": 0.9, "lam": 0.8, "whiten": False, "value_loss": "huber"}
        return installed("algorithm", "ppo", {}, other, ALL | RECOMPUTE | {"value_clip": None})


class TestOpd(AlgorithmConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed("algorithm", "opd", {}, {"discount": 0.9, "coef": 2.0} | ALL | RECOMPUTE)


class TestDpo(AlgorithmConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed("algorithm", "dpo", {}, {"beta": 0.5})


class TestSft(AlgorithmConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed("algorithm", "sft", {}, {"min_reward": 0.5})


def test_the_golden_values_are_those_of_their_formulas() -> None:
    kept = json.loads((HERE / "golden.json").read_text(encoding="utf-8"))["cases"]
    made = runpy.run_path(str(HERE / "golden.py"))["made"]()["cases"]
    assert [case["variant"] for case in kept] == [case["variant"] for case in made]
    for one, other in zip(kept, made, strict=True):
        assert one["given"] == other["given"]
        for part in ("advantages", "gradient"):
            np.testing.assert_allclose(
                one["expected"][part], other["expected"][part], rtol=1e-12, atol=1e-15
            )
    clipped = [case["expected"]["metrics"]["clip_fraction"] for case in kept]
    assert max(clipped) > 0.1, "nothing is clipped, so the clip is not examined"
