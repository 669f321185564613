"""Algorithms with one mistake each; run by test_mutants.py."""

from __future__ import annotations

import random
import runpy
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from astraflow_core.types import Batch, ComponentContext, Loss, LossInputs
from astraflow_plugin_losses.algorithms.grpo import Grpo, GrpoConfig
from astraflow_testing.conformance.algorithm import AlgorithmConformance
from astraflow_testing.conformance.subject import Subject

KEYS: dict[str, Any] = {"kl_coef": 0.05, "entropy_coef": 0.01}
GOLDEN = Path(__file__).parents[2] / "plugins" / "algorithms" / "losses" / "tests" / "golden.json"
GRPO = frozenset({"reference", "entropy"})


class OfGrpo(AlgorithmConformance):
    """GRPO with ``mistake`` in the place of its class."""

    mistake: ClassVar[type[Any]] = Grpo
    capabilities: ClassVar[frozenset[str]] = GRPO

    @pytest.fixture
    def component(self) -> Subject:
        def build(context: ComponentContext, keys: dict[str, Any]) -> Any:
            return self.mistake(GrpoConfig(**keys), context)

        variants = {
            "defaults": lambda context: build(context, {}),
            "all terms": lambda context: build(context, KEYS),
        }
        return Subject(variants, self.capabilities)


class TestHealthy(OfGrpo):
    pass


class Decoupled:
    """Decoupled PPO (Hilton et al. 2022) with a critic's one-step advantages, tokens weighed by how near
    the current policy still is: it needs what GRPO does not."""

    needs = frozenset({"proximal", "values", "current"})

    def __init__(self, context: ComponentContext) -> None:
        self._policy = context.policy

    def advantages(self, batch: Batch) -> Any:
        assert batch.values is not None
        return np.where(batch.loss_mask, batch.spread(batch.rewards) - batch.values, np.float32(0))

    def weights(self, batch: Batch) -> dict[str, Any]:
        assert batch.current is not None
        near = np.abs(batch.current - batch.logprobs) < 10
        share = (batch.loss_mask & near) / np.float32(max(1, batch.trained_tokens))
        return {"policy": share.astype(np.float32)}

    def loss(self, inputs: LossInputs) -> Loss:
        def trained(values: Any) -> Any:
            return torch.where(inputs.mask, values, torch.zeros((), dtype=values.dtype))

        ratio = (trained(inputs.logprobs) - trained(inputs.proximal)).exp()
        behaviour = (trained(inputs.proximal) - trained(inputs.behaviour)).exp()
        gain = torch.minimum(
            ratio * trained(inputs.advantages), ratio.clamp(0.8, 1.2) * trained(inputs.advantages)
        )
        surrogate = (inputs.weights["policy"] * behaviour * gain).sum()
        return Loss({"policy": (-1.0, surrogate)})


class TestHealthyWithACritic(AlgorithmConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return Subject({"decoupled": Decoupled}, Decoupled.needs)


class MaskIgnored(Grpo):
    def loss(self, inputs: LossInputs) -> Loss:
        return super().loss(replace(inputs, mask=torch.ones_like(inputs.mask)))


class TestMaskIgnored(OfGrpo):
    wrong = "trusts that weights of 0 hide what masked positions hold"
    mistake = MaskIgnored


class MaskOfResponses(Grpo):
    def advantages(self, batch: Batch) -> Any:
        response = np.concatenate(
            [
                np.arange(length) >= first
                for length, first in zip(batch.lengths, self._firsts(batch), strict=True)
            ]
        )
        return super().advantages(replace(batch, loss_mask=response))

    def weights(self, batch: Batch) -> dict[str, Any]:
        bounds = batch.offsets
        mask = batch.loss_mask.copy()
        for row in range(len(batch)):
            inside = mask[bounds[row] : bounds[row + 1]]
            if inside.any():
                inside[int(inside.argmax()) :] = True
        return super().weights(replace(batch, loss_mask=mask))

    def _firsts(self, batch: Batch) -> list[int]:
        bounds = batch.offsets
        rows = [batch.loss_mask[bounds[r] : bounds[r + 1]] for r in range(len(batch))]
        return [int(row.argmax()) if row.any() else len(row) for row in rows]


class TestMaskOfResponses(OfGrpo):
    wrong = "trains all tokens after the first trained one, tool output in between included"
    mistake = MaskOfResponses


class MicroBatchMean(Grpo):
    def loss(self, inputs: LossInputs) -> Loss:
        count = inputs.mask.sum().clamp(min=1)
        share = inputs.mask.to(inputs.logprobs.dtype) / count
        return super().loss(replace(inputs, weights=dict.fromkeys(inputs.weights, share)))


class TestMicroBatchMean(OfGrpo):
    wrong = "takes the mean over each micro-batch"
    mistake = MicroBatchMean


class MeanMetrics(Grpo):
    def loss(self, inputs: LossInputs) -> Loss:
        loss = super().loss(inputs)
        ratio = (inputs.logprobs - inputs.behaviour)[inputs.mask].exp().mean().detach()
        return replace(loss, metrics={**loss.metrics, "ratio_mean": ratio})


class TestMeanMetrics(OfGrpo):
    wrong = "reports a mean over the micro-batch where metrics add up"
    mistake = MeanMetrics


class NoEpsilon(Grpo):
    def advantages(self, batch: Batch) -> Any:
        spread = batch.spread((batch.rewards - batch.group_mean) / batch.group_std)
        return np.where(batch.loss_mask, spread, np.float32(0))


class TestNoEpsilon(OfGrpo):
    wrong = "divides by the group's standard deviation, 0 or not"
    mistake = NoEpsilon


class GroupOfTheBatch(Grpo):
    def advantages(self, batch: Batch) -> Any:
        own = {g: batch.rewards[batch.group == g].mean() for g in np.unique(batch.group)}
        means = np.array([own[g] for g in batch.group], dtype=np.float32)
        return super().advantages(replace(batch, group_mean=means))


class TestGroupOfTheBatch(OfGrpo):
    wrong = "takes the group's mean over the rows that this batch holds"
    mistake = GroupOfTheBatch


class FirstRowIsTheBaseline(Grpo):
    def advantages(self, batch: Batch) -> Any:
        first = np.full_like(batch.group_mean, batch.rewards[0])
        return super().advantages(replace(batch, group_mean=first))


class TestFirstRowIsTheBaseline(OfGrpo):
    wrong = "takes the first row's reward as the baseline of all"
    mistake = FirstRowIsTheBaseline


class Ascends(Grpo):
    def loss(self, inputs: LossInputs) -> Loss:
        loss = super().loss(inputs)
        _, value = loss.terms["policy"]
        return replace(loss, terms={**loss.terms, "policy": (-1.0, value)})


class TestAscends(OfGrpo):
    wrong = "gives the objective to maximise instead of a loss"
    mistake = Ascends


class DetachedRatio(Grpo):
    def loss(self, inputs: LossInputs) -> Loss:
        loss = super().loss(inputs)
        still = super().loss(replace(inputs, logprobs=inputs.logprobs.detach()))
        if "kl" not in loss.terms:
            return loss
        return replace(loss, terms={**loss.terms, "kl": still.terms["kl"]})


class TestDetachedRatio(OfGrpo):
    wrong = "computes the KL to the reference from detached log-probs"
    mistake = DetachedRatio


class ProductOfRatios(Grpo):
    def loss(self, inputs: LossInputs) -> Loss:
        gap = torch.where(inputs.mask, inputs.logprobs - inputs.behaviour, 0.0)
        per_row = torch.zeros(inputs.rows, dtype=gap.dtype).index_add(0, inputs.row, gap)
        advantages = torch.where(inputs.mask, inputs.advantages, 0.0)
        value = (inputs.weights["policy"] * per_row.exp()[inputs.row] * advantages).sum()
        return Loss({"policy": (-1.0, value)}, super().loss(inputs).metrics)


class TestProductOfRatios(OfGrpo):
    wrong = "multiplies the ratios of a row, unbounded"
    mistake = ProductOfRatios
    capabilities = frozenset()

    @pytest.fixture
    def component(self) -> Subject:
        return Subject({"defaults": lambda c: ProductOfRatios(GrpoConfig(), c)}, frozenset())


class TestUndeclared(OfGrpo):
    wrong = "needs a reference model that its capabilities do not name"
    capabilities = frozenset({"entropy"})


class Idle(Grpo):
    @property
    def needs(self) -> frozenset[str]:
        return super().needs | {"values"}


class TestIdle(OfGrpo):
    wrong = "asks for a critic that it does not use"
    mistake = Idle
    capabilities = GRPO | {"values"}


class TestPromises(OfGrpo):
    wrong = "declares a capability that no configuration uses"
    capabilities = GRPO | {"proximal"}


class RunningBaseline(Grpo):
    def __init__(self, config: GrpoConfig, context: ComponentContext) -> None:
        super().__init__(config, context)
        self._mean = 0.0

    def advantages(self, batch: Batch) -> Any:
        self._mean = 0.9 * self._mean + 0.1 * float(batch.rewards.mean())
        return super().advantages(
            replace(batch, group_mean=batch.group_mean + np.float32(self._mean))
        )


class TestRunningBaseline(OfGrpo):
    wrong = "keeps a running mean of rewards that no checkpoint holds"
    mistake = RunningBaseline


class InPlace(Grpo):
    def advantages(self, batch: Batch) -> Any:
        batch.rewards.clip(-1, 0.5, out=batch.rewards)
        return super().advantages(batch)


class TestInPlace(OfGrpo):
    wrong = "clips the batch's rewards in place"
    mistake = InPlace


class DropsTokens(Grpo):
    def weights(self, batch: Batch) -> dict[str, Any]:
        given = super().weights(batch)
        return {term: share * np.float32(random.random()) for term, share in given.items()}


class TestDropsTokens(OfGrpo):
    wrong = "draws from an unseeded generator"
    mistake = DropsTokens


class DividesByNothing(Grpo):
    def weights(self, batch: Batch) -> dict[str, Any]:
        share = batch.loss_mask / np.float32(batch.trained_tokens)
        return {term: share.astype(np.float32) for term in super().weights(batch)}


class TestDividesByNothing(OfGrpo):
    wrong = "divides by the number of trained tokens, which can be 0"
    mistake = DividesByNothing


class OfGolden(OfGrpo):
    """GRPO beside the golden values of its plugin, in their configurations."""

    capabilities: ClassVar[frozenset[str]] = GRPO | {"proximal"}

    @pytest.fixture
    def component(self) -> Subject:
        known = runpy.run_path(str(GOLDEN.with_suffix(".py")))
        variants = {
            known["label"](keys): lambda context, keys=keys: self.mistake(
                GrpoConfig(**keys), context
            )
            for keys in known["VARIANTS"]
        }
        return Subject(variants, self.capabilities)

    @pytest.fixture
    def golden(self) -> Path:
        return GOLDEN


class TestHealthyAndGolden(OfGolden):
    pass


class SequenceMean(Grpo):
    def weights(self, batch: Batch) -> dict[str, Any]:
        trained = np.bincount(batch.row_of_token, weights=batch.loss_mask, minlength=len(batch))
        share = batch.loss_mask / np.maximum(trained, 1)[batch.row_of_token] / len(batch)
        return {term: share.astype(np.float32) for term in super().weights(batch)}


class TestSequenceMean(OfGolden):
    wrong = "gives each sequence the same weight, as the first GRPO did, and not each token"
    caught_by = "test_golden_values"
    mistake = SequenceMean


class OneBound(Grpo):
    def __init__(self, config: GrpoConfig, context: ComponentContext) -> None:
        super().__init__(config.model_copy(update={"clip_high": config.clip_low}), context)


class TestOneBound(OfGolden):
    wrong = "clips above at the bound that is meant for below"
    caught_by = "test_golden_values"
    mistake = OneBound


class EpsilonInside(Grpo):
    def advantages(self, batch: Batch) -> Any:
        inside = np.sqrt(batch.group_std**2 + np.float32(1e-4)).astype(np.float32)
        return super().advantages(replace(batch, group_std=inside))


class TestEpsilonInside(OfGolden):
    wrong = "adds epsilon inside of the root too"
    caught_by = "test_golden_values"
    mistake = EpsilonInside


class Optimist(Grpo):
    def loss(self, inputs: LossInputs) -> Loss:
        return super().loss(replace(inputs, advantages=inputs.advantages + 0.01))


class TestOptimist(OfGrpo):
    wrong = "adds a constant to every advantage, so that rows without one are reinforced too"
    caught_by = "test_without_advantages_nothing_is_learned"
    mistake = Optimist


class Decayed(Grpo):
    """Weighs a token by 0.9 to the power of its staleness."""

    base = 0.9

    def weights(self, batch: Batch) -> dict[str, Any]:
        lag = np.where(batch.loss_mask, batch.version - batch.versions, 0)
        decay = (self.base**lag).astype(np.float32)
        return {term: share * decay for term, share in super().weights(batch).items()}


class TestHealthyDecayed(OfGrpo):
    mistake = Decayed


class FavoursStale(Decayed):
    base = 1 / 0.9


class TestFavoursStale(OfGrpo):
    wrong = "weighs stale tokens more instead of less"
    caught_by = "test_stale_rows_never_weigh_more"
    mistake = FavoursStale


class TestWithoutTheFramework(OfGrpo):
    wrong = "is examined where torch is not installed, so that its loss and capabilities are not"
    caught_by = "test_the_suite_is_whole"

    @pytest.fixture(autouse=True)
    def no_torch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "torch", None)
