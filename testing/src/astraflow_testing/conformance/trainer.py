"""The suite that a trainer inherits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from astraflow_core.errors import NonFiniteLoss
from astraflow_core.protocols.trainer import SavesLater, Sleeps
from astraflow_testing.conformance._checks import Claims, assert_whole, capability
from astraflow_testing.conformance._models.adopt_tests import AdoptTests
from astraflow_testing.conformance._models.gradient_tests import GradientTests
from astraflow_testing.conformance._models.images.trainer_image_tests import TrainerImageTests
from astraflow_testing.conformance._models.per_token_tests import PerTokenTests
from astraflow_testing.conformance._models.sharded_export_tests import ShardedExportTests
from astraflow_testing.conformance._models.trainer_checks import close_to, loss_inputs
from astraflow_testing.conformance._models.trainer_rig import (
    DEMANDS,
    PolicyGradient,
    Reference,
    TrainerRig,
    exported,
    ragged_batch,
    ready,
    same_update,
    tiny_model_logits,
    token_logprobs,
    train,
)
from astraflow_testing.conformance._models.trainer_routing_tests import TrainerRoutingTests
from astraflow_testing.conformance._models.weights import read_tensors, write_tensors
from astraflow_testing.conformance.subject import Conformance, Subject, installed
from astraflow_tiny_model.folder import write_tiny_model

__all__ = ["Reference", "Subject", "TrainerConformance", "installed"]

METRICS = ("loss", "grad_norm", "lr", "tokens")
BITWISE = 1e-6
"""Share of an update within which two ways to the same step agree; a parallel machine adds in any order."""


class TrainerConformance(
    Conformance,
    Claims,
    ShardedExportTests,
    GradientTests,
    AdoptTests,
    TrainerRoutingTests,
    PerTokenTests,
    TrainerImageTests,
):
    """Inherit this and give the fixture ``component``::

        class TestMyTrainer(TrainerConformance):
            @pytest.fixture
            def component(self) -> Subject:
                keys = {"device": "cpu", "publish_dtype": "float32", "lr": 1e-2}
                return installed("trainer", "mine", keys, {**keys, "micro_batch_tokens": 9})

    The first configuration publishes float32 and has a learning rate at which a few steps on ten short rows show. The
    others differ from it only in how a mini-batch is cut and computed (packing, checkpointing).

    The trainer is set up with a model of 27 tokens and about 25 000 float32 parameters in the Qwen3 architecture, and
    compared with a forward pass in float64. A trainer that cannot train it overrides the fixtures ``model`` (a folder with
    ``config.json`` and ``model.safetensors``) and ``reference``. Tests may not be replaced, only named in ``expected_failures``.
    """

    tolerance = 1e-4
    """Largest error of a log-prob."""

    calls_loss = True
    """False for a trainer with a built-in loss, -sum(weight · advantage · log-prob), and no micro-batches."""

    cuts_mini_batches = True
    """False for a trainer that calls the loss once, on the whole mini-batch."""

    @pytest.fixture
    def component(self) -> Subject:
        """The trainer in two or more configurations; required."""
        pytest.fail(
            "define the fixture `component`; return installed('trainer', NAME, {…keys…}, {…a cut…})",
            pytrace=False,
        )

    @pytest.fixture
    def model(self, tmp_path: Path) -> Path:
        """The folder that is trained."""
        return write_tiny_model(tmp_path / "model", hidden=32, init_std=0.2)

    @pytest.fixture
    def reference(self, model: Path) -> Reference:
        """Where the log-probs to compare with come from."""
        return tiny_model_logits(model)

    @pytest.fixture
    def rig(self, component: Subject, model: Path, tmp_path: Path) -> Iterator[TrainerRig]:
        """Builds trainers, and closes them."""
        rig = TrainerRig(component, model, tmp_path)
        yield rig
        for trainer in rig.built:
            trainer.close()

    def test_the_suite_is_whole(self, component: Subject, request: pytest.FixtureRequest) -> None:
        assert_whole("trainer", request, ("model", "reference"))
        cuts = self.calls_loss and self.cuts_mini_batches
        assert len(component.variants) > 1 or not cuts, (
            "give a second configuration that cuts mini-batches differently, or set cuts_mini_batches = False"
        )

    @pytest.mark.parametrize("temperature", [1.0, 0.7, 1.6])
    def test_logprobs_are_those_of_an_independent_forward_pass(
        self, temperature: float, rig: TrainerRig, model: Path, reference: Reference
    ) -> None:
        batch = ragged_batch(temperature=temperature)
        got = rig.build().logprobs(batch, "current")
        DEMANDS.that(
            got.dtype == np.float32 and got.shape == batch.tokens.shape,
            f"logprobs() gave {got.dtype} {list(got.shape)} for {len(batch.tokens)} tokens",
            "float32 [N]",
        )
        DEMANDS.that(
            not got[batch.offsets[:-1]].any(),
            f"the first tokens of rows have the log-probs {got[batch.offsets[:-1]]}",
            "0 at the first token of a row",
        )
        expected = token_logprobs(reference(model / "model.safetensors", batch), batch)
        close_to(got, expected, self.tolerance, f"logprobs() at temperature {temperature}")

    def test_rows_do_not_see_one_another(self, rig: TrainerRig) -> None:
        trainer, batch = rig.build(), ragged_batch()
        whole = trainer.logprobs(batch, "current")
        rows = np.array([7, 2, 9, 5])
        part = trainer.logprobs(batch.take(rows), "current")
        among = np.concatenate([whole[batch.offsets[r] : batch.offsets[r + 1]] for r in rows])
        close_to(part, among, self.tolerance, "logprobs() of some rows, in another order,")

    def test_metrics_of_a_step(self, rig: TrainerRig, model: Path, reference: Reference) -> None:
        trainer, algorithm = rig.build(), PolicyGradient()
        batch = ready(trainer, ragged_batch(), algorithm)
        metrics = trainer.step(batch, algorithm, 0)
        missing = [key for key in METRICS if key not in metrics]
        DEMANDS.that(not missing, f"step() returned no {missing}", f"at least {METRICS}")
        bad = [key for key, value in metrics.items() if not math.isfinite(value)]
        DEMANDS.that(not bad, f"step() returned no finite number for {bad}", "metrics")
        logprobs = token_logprobs(reference(model / "model.safetensors", batch), batch)
        assert batch.advantages is not None
        loss = -float((batch.weights["policy"] * batch.advantages * logprobs).sum())
        expected = {"loss": loss, "tokens": float(len(batch.tokens))}
        if self.calls_loss:
            expected["mean_logprob"] = float((batch.weights["policy"] * logprobs).sum())
        for key, value in expected.items():
            got = metrics.get(key, math.nan)
            DEMANDS.that(
                abs(got - value) <= self.tolerance * max(1, abs(value)),
                f"step() reports {key} {got:.6g}, expected {value:.6g}",
                "'loss' and the algorithm's metrics are those of the whole mini-batch before the update, "
                "'tokens' counts all of its tokens",
            )
        DEMANDS.that(
            metrics["grad_norm"] > 0, f"grad_norm is {metrics['grad_norm']}", "the gradient's norm"
        )

    def test_the_loss_falls_on_a_fixed_batch(self, rig: TrainerRig) -> None:
        trainer, algorithm = rig.build(), PolicyGradient()
        batch = ready(trainer, ragged_batch(), algorithm)
        losses = [trainer.step(batch, algorithm, step)["loss"] for step in range(5)]
        DEMANDS.that(
            losses[-1] < losses[0] - 1e-3,
            f"five steps on one batch took the loss from {losses[0]:.5f} to {losses[-1]:.5f}",
            "a step goes down the gradient of the loss",
        )

    def test_the_update_does_not_depend_on_how_a_mini_batch_is_cut(self, rig: TrainerRig) -> None:
        if len(rig.variants) < 2:
            pytest.skip("it has no micro-batches")
        trainer, demanded = rig.build(), "the gradient is that of the whole mini-batch however cut"
        before, metrics, after = exported(trainer), train(trainer, range(2)), exported(trainer)
        for variant in rig.variants[1:]:
            other = rig.build(variant)
            for one, two in zip(metrics, train(other, range(2)), strict=True):
                for key in ("loss", "grad_norm"):
                    DEMANDS.that(
                        math.isclose(one[key], two[key], rel_tol=1e-3, abs_tol=1e-6),
                        f"{key} is {one[key]:.6g} in one cut and {two[key]:.6g} with {variant}",
                        demanded,
                    )
            same, words = same_update(before, after, exported(other), 0.02)
            DEMANDS.that(same, f"{words} with {variant}", demanded)

    def test_the_order_of_rows_does_not_matter(self, rig: TrainerRig) -> None:
        one, other, algorithm = rig.build(), rig.build(), PolicyGradient()
        batch = ready(one, ragged_batch(), algorithm)
        before = exported(one)
        one.step(batch, algorithm, 0)
        other.step(batch.take(np.random.default_rng(1).permutation(len(batch))), algorithm, 0)
        same, words = same_update(before, exported(one), exported(other), 0.02)
        DEMANDS.that(same, f"{words} for two orders of rows", "a step is one on the mini-batch")

    def test_the_same_seed_makes_the_same_steps(self, rig: TrainerRig) -> None:
        one, other = rig.build(), rig.build()
        before = exported(one)
        DEMANDS.that(
            exported(other) == before, "two instances start differently", "one initial model"
        )
        metrics = [train(trainer, range(2)) for trainer in (one, other)]
        same, words = same_update(before, exported(one), exported(other), BITWISE)
        DEMANDS.that(
            same
            and all(
                math.isclose(a["loss"], b["loss"], rel_tol=1e-6)
                for a, b in zip(*metrics, strict=True)
            ),
            f"{words} in two instances with one seed",
            "randomness, if any, comes from context.seed",
        )

    def test_masked_tokens_have_no_influence(self, rig: TrainerRig) -> None:
        algorithm = PolicyGradient()
        one, other = rig.build(), rig.build()
        batch = ready(one, ragged_batch(), algorithm)
        rng = np.random.default_rng(3)
        garbage = rng.normal(0, 1e4, len(batch.tokens)).astype(np.float32)
        assert batch.advantages is not None
        filled = replace(
            batch,
            logprobs=np.where(batch.loss_mask, batch.logprobs, garbage),
            advantages=np.where(batch.loss_mask, batch.advantages, garbage),
            versions=np.where(batch.loss_mask, batch.versions, 12345).astype(np.int32),
        )
        before = exported(one)
        metrics = [t.step(b, algorithm, 0) for t, b in ((one, batch), (other, filled))]
        same, words = same_update(before, exported(one), exported(other), BITWISE)
        DEMANDS.that(
            same and math.isclose(metrics[0]["loss"], metrics[1]["loss"], rel_tol=1e-6),
            f"{words} and losses are {[m['loss'] for m in metrics]} after log-probs, advantages and "
            "versions of masked tokens were filled with garbage",
            "only tokens with the loss mask set are trained",
        )

    @pytest.mark.parametrize("poison", [math.nan, math.inf])
    def test_a_loss_that_is_not_finite_is_refused(self, poison: float, rig: TrainerRig) -> None:
        algorithm, one, untouched = PolicyGradient(), rig.build(), rig.build()
        train(one, [0])
        train(untouched, [0])
        good = ready(one, ragged_batch(1), algorithm)
        assert good.advantages is not None
        advantages = good.advantages.copy()
        advantages[np.flatnonzero(good.loss_mask)[3]] = poison
        before = exported(one)
        try:
            metrics = one.step(replace(good, advantages=advantages), algorithm, 1)
        except NonFiniteLoss:
            pass
        else:
            DEMANDS.broken(f"a loss of {metrics.get('loss')} was stepped on", "NonFiniteLoss")
        DEMANDS.that(
            exported(one) == before,
            "the refused step changed the weights",
            "NonFiniteLoss is raised before the optimizer changes anything",
        )
        one.step(good, algorithm, 1)
        untouched.step(good, algorithm, 1)
        same, words = same_update(before, exported(untouched), exported(one), BITWISE)
        DEMANDS.that(
            same,
            f"{words}: the step after a refused one is not that of a trainer that never saw it",
            "NonFiniteLoss is raised before the optimizer changes anything",
        )

    def test_export_gives_the_names_shapes_and_values_of_the_folder(
        self, rig: TrainerRig, model: Path
    ) -> None:
        got, expected = exported(rig.build()), read_tensors(model / "model.safetensors")
        DEMANDS.that(
            got.keys() == expected.keys(),
            f"export() lacks {sorted(expected.keys() - got.keys())[:3]} and adds "
            f"{sorted(got.keys() - expected.keys())[:3]}",
            "full tensors under Hugging Face names, tied ones left out",
        )
        for name, tensor in expected.items():
            DEMANDS.that(
                (got[name].shape, got[name].dtype) == (tensor.shape, tensor.dtype)
                and got[name].data == tensor.data,
                f"export() gives {name} as {got[name].dtype} {got[name].shape} (the folder: "
                f"{tensor.dtype} {tensor.shape}) or with other values, before any step",
                "the current weights, full tensors under Hugging Face names",
            )

    def test_export_is_what_the_trainer_computes_with(
        self, rig: TrainerRig, tmp_path: Path, reference: Reference
    ) -> None:
        trainer, batch = rig.build(), ragged_batch(5)
        before = exported(trainer)
        train(trainer, range(2))
        after = exported(trainer)
        DEMANDS.that(before != after, "two steps did not change the export", "the current weights")
        file = write_tensors(tmp_path / "exported.safetensors", after)
        expected = token_logprobs(reference(file, batch), batch)
        got = trainer.logprobs(batch, "current")
        close_to(got, expected, self.tolerance, "after two steps logprobs()")

    def test_a_saved_model_loads_again(self, rig: TrainerRig) -> None:
        trainer, batch = rig.build(), ragged_batch(5)
        train(trainer, range(2))
        folder = rig.folder("saved-model")
        trainer.save_model(folder)
        source = {file.name for file in rig.model.iterdir()}
        written = {file.name for file in folder.iterdir()}
        missing = {"config.json", "tokenizer.json", "tokenizer_config.json"} & source - written
        DEMANDS.that(
            not missing, f"save_model() left out {sorted(missing)}", "a Hugging Face folder"
        )
        names = {n for file in folder.glob("*.safetensors") for n in read_tensors(file)}
        DEMANDS.that(
            names == exported(trainer).keys(),
            f"save_model() wrote {sorted(names)[:3]} … ({len(names)} names)",
            "the names of the export",
        )
        again = rig.build(model=folder).logprobs(batch, "current")
        expected = trainer.logprobs(batch, "current")
        close_to(again, expected, self.tolerance, "a trainer on the saved model")

    @capability("checkpoint")
    def test_the_step_after_loading_is_the_same(self, component: Subject, rig: TrainerRig) -> None:
        through, folder = rig.build(), rig.folder("checkpoint")
        train(through, range(3))
        at_save = exported(through)
        through.save(folder)
        expected, after = train(through, [3, 4]), exported(through)
        if "async_save" in component.capabilities:
            cast(SavesLater, through).finish_save(True)
        for name, trainer in (("a fresh trainer", rig.build()), ("the trainer itself", through)):
            trainer.load(folder)
            DEMANDS.that(
                exported(trainer) == at_save,
                f"{name} has other weights after load()",
                "load() restores what save() wrote",
            )
            metrics = train(trainer, [3, 4])
            for one, two in zip(expected, metrics, strict=True):
                for key in METRICS:
                    DEMANDS.that(
                        math.isclose(one[key], two[key], rel_tol=1e-5, abs_tol=1e-7),
                        f"after load() into {name} {key} is {two[key]:.8g} instead of {one[key]:.8g}",
                        "the next step is the same as without the interruption",
                    )
            same, words = same_update(at_save, after, exported(trainer), BITWISE)
            DEMANDS.that(
                same,
                f"{words} with and without load() into {name}",
                "the next step is the same as without the interruption (optimizer, schedule, RNG)",
            )

    @capability("sleep")
    def test_sleep_between_steps_changes_nothing(self, component: Subject, rig: TrainerRig) -> None:
        awake, sleeper = rig.build(), rig.build()
        before = exported(awake)
        metrics = train(awake, range(3))
        slept = []
        for step in range(3):
            slept += train(sleeper, range(step, step + 1))
            cast(Sleeps, sleeper).sleep()
            sleeper.save_model(rig.folder(f"asleep-{step}"))
            cast(Sleeps, sleeper).wake()
        same, words = same_update(before, exported(awake), exported(sleeper), BITWISE)
        DEMANDS.that(
            same
            and all(
                math.isclose(a["loss"], b["loss"], rel_tol=1e-6)
                for a, b in zip(metrics, slept, strict=True)
            ),
            f"{words} in a trainer that sleeps between its steps",
            "the state in host memory is restored bitwise",
        )

    @capability("async_save")
    def test_a_checkpoint_has_the_state_at_its_start(
        self, component: Subject, rig: TrainerRig
    ) -> None:
        trainer, folder = rig.build(), rig.folder("later")
        train(trainer, range(2))
        at_save = exported(trainer)
        trainer.save(folder)
        train(trainer, [2])
        DEMANDS.that(
            cast(SavesLater, trainer).finish_save(True) is True,
            "finish_save(wait=True) did not return True",
            "with `wait` it returns True when everything is in its files",
        )
        fresh = rig.build()
        fresh.load(folder)
        DEMANDS.that(
            exported(fresh) == at_save,
            "a step between save() and finish_save() is in the checkpoint",
            "it has the state of the moment at which save() was called",
        )

    @capability("reference")
    def test_the_reference_stays_the_initial_model(
        self, component: Subject, rig: TrainerRig, model: Path, reference: Reference
    ) -> None:
        trainer, batch = rig.build(needs=frozenset({"reference"})), ragged_batch(5)
        expected = token_logprobs(reference(model / "model.safetensors", batch), batch)
        if getattr(trainer, "reference_is_current", False):
            got = trainer.logprobs(batch, "current")
            close_to(got, expected, self.tolerance, "logprobs(…, 'current') before a step")
        train(trainer, range(2))
        DEMANDS.that(
            not getattr(trainer, "reference_is_current", False),
            "reference_is_current after two steps",
            "true only while the two models are the same",
        )
        got = trainer.logprobs(batch, "reference")
        close_to(got, expected, self.tolerance, "logprobs(…, 'reference') after two steps")

    @capability("proximal")
    def test_logprobs_do_not_disturb_the_update(self, component: Subject, rig: TrainerRig) -> None:
        one, other, algorithm = rig.build(), rig.build(), PolicyGradient()
        before = exported(one)
        for step in range(2):
            batch = ready(one, ragged_batch(step), algorithm)
            other.logprobs(batch, "current")
            one.step(batch, algorithm, step)
            other.step(batch, algorithm, step)
        same, words = same_update(before, exported(one), exported(other), BITWISE)
        DEMANDS.that(
            same, f"{words} if logprobs() is called before each step", "logprobs: no gradient"
        )

    def test_the_loss_is_given_every_trained_token_once(
        self, rig: TrainerRig, model: Path, reference: Reference
    ) -> None:
        if not self.calls_loss:
            pytest.skip("its loss is built in")
        needs = rig.component.capabilities & {"entropy", "reference", "proximal"}
        loss_inputs(rig, needs, model, reference, self.tolerance)

    @capability("entropy")
    def test_the_loss_is_given_the_entropy(
        self, component: Subject, rig: TrainerRig, model: Path, reference: Reference
    ) -> None:
        if not self.calls_loss:
            pytest.skip("its loss is built in")
        loss_inputs(rig, frozenset({"entropy"}), model, reference, self.tolerance)
