"""Trainers that each do one thing wrong, all ``torch`` but for that; the suite for trainers has to fail them all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch

from astraflow_core.errors import NonFiniteLoss
from astraflow_core.protocols.algorithm import Algorithm
from astraflow_core.protocols.trainer import AdamWStep
from astraflow_core.types import Batch, ExportedTensor, Loss, LossInputs, TensorSlice
from astraflow_plugin_torch_trainer import manifest
from astraflow_plugin_torch_trainer.config import TorchTrainerConfig
from astraflow_plugin_torch_trainer.trainer import TorchTrainer
from astraflow_testing.conformance._models.trainer_rig import TrainerRig
from astraflow_testing.conformance.trainer import Subject, TrainerConformance

KEYS: dict[str, Any] = {
    "device": "cpu",
    "publish_dtype": "float32",
    "lr": 1e-2,
    "schedule": "cosine",
    "warmup_steps": 2,
}
VARIANTS = (KEYS, {**KEYS, "micro_batch_tokens": 9})


class Examination(TrainerConformance):
    """The suite on the trainer ``torch``, or on what ``trainer`` names instead."""

    __test__ = False
    wrong = ""
    trainer: type[TorchTrainer] = TorchTrainer
    more: frozenset[str] = frozenset()
    own_tests: ClassVar[dict[str, str]] = {"lora": "test_adapters"}

    def test_adapters(self, rig: TrainerRig) -> None:
        """The trainer's own tests show them; none of the mistakes here is about them."""
        assert rig.build().weights_kind == "full"  # type: ignore[attr-defined]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.__test__ = True

    @pytest.fixture
    def component(self) -> Subject:
        def factory(keys: dict[str, Any]) -> Any:
            config = TorchTrainerConfig(**keys)
            return lambda context: self.trainer(config, context)

        (declared,) = manifest.astraflow_trainers()
        variants = {str(number): factory(keys) for number, keys in enumerate(VARIANTS)}
        return Subject(variants, declared.capabilities | self.more)


class TestHealthy(Examination):
    pass


class Wrapped:
    """An algorithm whose loss is changed on its way."""

    def __init__(self, algorithm: Algorithm) -> None:
        self._algorithm = algorithm
        self.needs = algorithm.needs
        self.advantages, self.weights = algorithm.advantages, algorithm.weights

    def loss(self, inputs: LossInputs) -> Loss:
        share = inputs.weights["policy"].sum()
        loss = self._algorithm.loss(inputs)
        return Loss({n: (c, v / share) for n, (c, v) in loss.terms.items()}, loss.metrics)


class MeanPerMicroBatch(TorchTrainer):
    def step(self, batch: Batch, algorithm: Algorithm, step: int) -> dict[str, float]:
        return super().step(batch, Wrapped(algorithm), step)


class TestMeanPerMicroBatch(Examination):
    wrong = "the loss is averaged within each micro-batch, so short ones count too much"
    trainer = MeanPerMicroBatch


class ShiftedLogprobs(TorchTrainer):
    def logprobs(self, batch: Batch, model: Literal["current", "reference"]) -> Any:
        return np.roll(super().logprobs(batch, model), 1)


class TestShiftedLogprobs(Examination):
    wrong = "log-probs stand at the token after their own"
    trainer = ShiftedLogprobs


class NoTemperature(TorchTrainer):
    def logprobs(self, batch: Batch, model: Literal["current", "reference"]) -> Any:
        return super().logprobs(replace(batch, temperature=1.0), model)


class TestNoTemperature(Examination):
    wrong = "logprobs() forgets the temperature, which the behaviour log-probs include"
    trainer = NoTemperature


class MaskIgnored(TorchTrainer):
    def step(self, batch: Batch, algorithm: Algorithm, step: int) -> dict[str, float]:
        every = np.ones_like(batch.loss_mask)
        every[batch.offsets[:-1]] = False
        weights = {name: every / np.float32(every.sum()) for name in batch.weights}
        return super().step(replace(batch, loss_mask=every, weights=weights), algorithm, step)


class TestMaskIgnored(Examination):
    wrong = "prompt and tool tokens are trained on"
    trainer = MaskIgnored


class DriftingReference(TorchTrainer):
    def logprobs(self, batch: Batch, model: Literal["current", "reference"]) -> Any:
        return super().logprobs(batch, "current")


class TestDriftingReference(Examination):
    wrong = "the reference model shares its weights with the trained one"
    trainer = DriftingReference


class EternalReference(TorchTrainer):
    reference_is_current = True


class TestEternalReference(Examination):
    wrong = "an update takes reference log-probs for proximal ones after the first step too"
    trainer = EternalReference
    caught_by = "test_the_reference_stays_the_initial_model"


class ForgottenOptimizer(TorchTrainer):
    def load(self, directory: Path) -> None:
        super().load(directory)
        for optimizer in self._optimizers:
            optimizer.state.clear()


class TestForgottenOptimizer(Examination):
    wrong = "load() restores the weights and the schedule, but not the moments of the optimizer"
    trainer = ForgottenOptimizer


class SavesTooLate(TorchTrainer):
    def save(self, directory: Path) -> None:
        self._begun = directory

    def load(self, directory: Path) -> None:
        if not any(directory.iterdir()):
            self.finish_save(True)
        super().load(directory)

    def finish_save(self, wait: bool) -> bool:
        super().save(self._begun)
        return True


class TestSavesTooLate(Examination):
    wrong = "an asynchronous checkpoint holds the steps that were made while it was written"
    caught_by = "test_a_checkpoint_has_the_state_at_its_start"
    more = frozenset({"async_save"})
    trainer = SavesTooLate


class ForgottenSchedule(TorchTrainer):
    def load(self, directory: Path) -> None:
        super().load(directory)
        self._steps = 0


class TestForgottenSchedule(Examination):
    wrong = "load() starts the learning rate's schedule again"
    trainer = ForgottenSchedule


class WrappedNames(TorchTrainer):
    def export(self) -> Iterator[ExportedTensor]:
        for tensor in super().export():
            yield replace(tensor, name=f"_orig_mod.{tensor.name}")


class TestWrappedNames(Examination):
    wrong = "export() names tensors as the wrapping module does"
    trainer = WrappedNames


class TransposedExport(TorchTrainer):
    def export(self) -> Iterator[ExportedTensor]:
        for tensor in super().export():
            rows = np.frombuffer(bytes(tensor.data), np.float32).reshape(tensor.shape)
            yield replace(tensor, data=np.ascontiguousarray(rows.T.reshape(tensor.shape)))


class TestTransposedExport(Examination):
    wrong = "export() writes matrices column by column"
    trainer = TransposedExport


class StaleExport(TorchTrainer):
    def setup(self, model: Path, total_steps: int, needs: frozenset[str]) -> None:
        super().setup(model, total_steps, needs)
        self._first = [replace(t, data=bytes(t.data)) for t in super().export()]

    def export(self) -> Iterator[ExportedTensor]:
        yield from self._first


class TestStaleExport(Examination):
    wrong = "export() keeps giving the weights of the start"
    trainer = StaleExport


class PoisonedOptimizer(TorchTrainer):
    def step(self, batch: Batch, algorithm: Algorithm, step: int) -> dict[str, float]:
        try:
            return super().step(batch, algorithm, step)
        except NonFiniteLoss:
            for state in self._optimizers[0].state.values():
                state["exp_avg"].mul_(0.9)
            raise


class TestPoisonedOptimizer(Examination):
    wrong = "a refused step leaves its trace in the optimizer"
    trainer = PoisonedOptimizer


class LostGradient(TorchTrainer):
    def step(self, batch: Batch, algorithm: Algorithm, step: int) -> dict[str, float]:
        half = batch.take(np.arange(len(batch) // 2))
        return super().step(half, algorithm, step) | {"tokens": float(len(batch.tokens))}


class TestLostGradient(Examination):
    wrong = "only the first half of the rows reaches the loss"
    trainer = LostGradient


class KeptGradient(TorchTrainer):
    def setup(self, model: Path, total_steps: int, needs: frozenset[str]) -> None:
        super().setup(model, total_steps, needs)
        zero_grad, self._left = self._optimizers[0].zero_grad, {}

        def forget(set_to_none: bool = True) -> None:
            parameters = dict(self._model.whole.named_parameters())
            kept = {n: p.grad.clone() for n, p in parameters.items() if p.grad is not None}
            zero_grad(set_to_none=set_to_none)
            if not kept:
                for name, gradient in self._left.items():
                    parameters[name].grad = gradient.clone()
            self._left = {n: torch.nan_to_num(g) for n, g in kept.items()}

        self._optimizers[0].zero_grad = forget  # type: ignore[method-assign]


class TestKeptGradient(Examination):
    wrong = "gradients of a step are still there when the next one begins"
    trainer = KeptGradient


class SharedContext(TorchTrainer):
    def logprobs(self, batch: Batch, model: Literal["current", "reference"]) -> Any:
        joined = replace(batch, lengths=np.array([len(batch.tokens)], dtype=np.int32))
        values = super().logprobs(joined, model)
        values[batch.offsets[:-1]] = 0.0
        return values


class TestSharedContext(Examination):
    wrong = "rows are packed end to end without keeping attention apart"
    trainer = SharedContext


class Unseeded(TorchTrainer):
    def step(self, batch: Batch, algorithm: Algorithm, step: int) -> dict[str, float]:
        assert batch.advantages is not None
        noise = np.random.default_rng().normal(1, 1e-2, len(batch.advantages))
        noisy = (batch.advantages * noise).astype(np.float32)
        return super().step(replace(batch, advantages=noisy), algorithm, step)


class TestUnseeded(Examination):
    wrong = "takes its noise from a generator that nobody seeded"
    caught_by = "test_the_same_seed_makes_the_same_steps"
    trainer = Unseeded


class HalfAdopted(TorchTrainer):
    def adopt(self, model: Path, steps: int) -> None:
        kept = self._model.whole.get_input_embeddings().weight.detach().clone()
        super().adopt(model, steps)
        with torch.no_grad():
            self._model.whole.get_input_embeddings().weight.copy_(kept)


class TestHalfAdopted(Examination):
    wrong = "keeps its own embedding when it adopts the weights of a version"
    caught_by = "test_adopted_weights_are_exported_to_the_bit"
    trainer = HalfAdopted


class AdoptsAndStands(TorchTrainer):
    def adopt(self, model: Path, steps: int) -> None:
        super().adopt(model, steps)
        for optimizer in self._optimizers:
            optimizer.param_groups.clear()


class TestAdoptsAndStands(Examination):
    wrong = "has an optimizer of no parameters once it has adopted a version"
    caught_by = "test_adopted_weights_are_exported_to_the_bit"
    trainer = AdoptsAndStands


class TestUnshownClaim(Examination):
    wrong = "claims to run as several ranks, which no test shows"
    caught_by = "test_every_declared_capability_is_tested"
    more = frozenset({"multi_rank"})


class TestEntropyUnexamined(Examination):
    wrong = "claims the entropy, whose test it has switched off by calls_loss"
    caught_by = "test_the_loss_is_given_the_entropy"
    calls_loss = False


class CountsRows(TorchTrainer):
    publish = "auto"

    def export_shards(self) -> Iterator[TensorSlice]:
        for tensor in self.export():
            data, rows = bytes(tensor.data), tensor.shape[0]
            half = rows // 2 * (len(data) // rows)
            for start, part in ((0, data[:half]), (rows // 2, data[half:])):
                yield TensorSlice(tensor.name, tensor.dtype, tensor.shape, start, part)


class TestCountsRows(Examination):
    wrong = "slices of matrices begin at the number of their row, not of their element"
    caught_by = "test_the_slices_make_up_the_export"
    more = frozenset({"sharded_export"})
    trainer = CountsRows


class HoldsOneBatch(TorchTrainer):
    def accumulate(
        self, batch: Batch, algorithm: Algorithm, step: int, backward: bool = True
    ) -> dict[str, float]:
        self._zero_grad()
        return super().accumulate(batch, algorithm, step, backward)


class TestHoldsOneBatch(Examination):
    wrong = "a batch takes the place of the gradient that is held"
    caught_by = "test_gradients_add_up"
    trainer = HoldsOneBatch


class AlwaysBackward(TorchTrainer):
    def accumulate(
        self, batch: Batch, algorithm: Algorithm, step: int, backward: bool = True
    ) -> dict[str, float]:
        return super().accumulate(batch, algorithm, step)


class TestAlwaysBackward(Examination):
    wrong = "a pass that only looks adds its gradient"
    caught_by = "test_a_pass_without_backward_keeps_the_gradient"
    trainer = AlwaysBackward


class OwnExperts(TorchTrainer):
    def step(self, batch: Batch, algorithm: Algorithm, step: int) -> dict[str, float]:
        return super().step(replace(batch, routed_experts=None), algorithm, step)


class TestOwnExperts(Examination):
    wrong = "recorded experts are imposed for log-probs, and not in a step"
    caught_by = "test_recorded_experts_are_imposed"
    trainer = OwnExperts


class EveryExpert(TorchTrainer):
    def logprobs(self, batch: Batch, model: Literal["current", "reference"]) -> Any:
        if batch.routed_experts is not None:
            batch = replace(batch, routed_experts=batch.routed_experts[:, :2, :2] % 6)
        return super().logprobs(batch, model)


class TestEveryExpert(Examination):
    wrong = "numbers of experts that the model has not are taken for others"
    caught_by = "test_experts_of_another_model_are_refused"
    trainer = EveryExpert


class OtherRowsImages(TorchTrainer):
    def logprobs(self, batch: Batch, model: Literal["current", "reference"]) -> Any:
        pairs = zip(batch.images, batch.images[::-1], strict=True)
        swapped = tuple(replace(other, start=image.start) for image, other in pairs)
        return super().logprobs(replace(batch, images=swapped), model)


class TestOtherRowsImages(Examination):
    wrong = "a row sees the images of another"
    caught_by = "test_images_are_read_at_their_placeholders"
    trainer = OtherRowsImages


class BlindStep(TorchTrainer):
    def step(self, batch: Batch, algorithm: Algorithm, step: int) -> dict[str, float]:
        return super().step(replace(batch, images=()), algorithm, step)


class TestBlindStep(Examination):
    wrong = "images are read for log-probs, and not in a step"
    caught_by = "test_images_are_read_at_their_placeholders"
    trainer = BlindStep


class RawGradients(TorchTrainer):
    def logit_gradients(self, batch: Batch) -> Any:
        return super().logit_gradients(replace(batch, temperature=1.0))


class TestRawGradients(Examination):
    wrong = "logit_gradients() forgets the temperature"
    caught_by = "test_logit_gradients_are_those_of_an_independent_forward_pass"
    trainer = RawGradients


class OwnBetas(TorchTrainer):
    def apply(self, settings: AdamWStep) -> dict[str, float]:
        return super().apply(replace(settings, betas=self._config.betas))


class TestOwnBetas(Examination):
    wrong = "a step takes the betas of the trainer's keys"
    caught_by = "test_a_step_is_that_of_adamw"
    trainer = OwnBetas
