"""Tests of a trainer that declares ``gradients``."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from astraflow_core.errors import NonFiniteLoss
from astraflow_core.protocols.trainer import AccumulatesGradients, AdamWStep, Trainer
from astraflow_core.types import Batch
from astraflow_testing.conformance._checks import capability
from astraflow_testing.conformance._models.qwen3 import Floats
from astraflow_testing.conformance._models.trainer_checks import close_to
from astraflow_testing.conformance._models.trainer_rig import (
    DEMANDS,
    Exported,
    PolicyGradient,
    Reference,
    TrainerRig,
    exported,
    flat,
    ragged_batch,
    ready,
    token_logprobs,
)
from astraflow_testing.conformance._models.weights import write_tensors
from astraflow_testing.conformance.subject import Subject

PROBE = AdamWStep(lr=1.0, betas=(0.0, 0.0), eps=1.0)
"""A step of g / (|g| + 1), whatever steps came before: it shows the gradient g."""
STEPS = (
    AdamWStep(lr=1e-2, betas=(0.9, 0.95), eps=1e-3, max_grad_norm=0.05),
    AdamWStep(lr=5e-3, betas=(0.8, 0.99), eps=1e-2),
)
ALGORITHM = PolicyGradient()


def prepared(trainer: Trainer, seed: int) -> tuple[AccumulatesGradients, Batch]:
    """The trainer, and a batch to accumulate."""
    return cast(AccumulatesGradients, trainer), ready(trainer, ragged_batch(seed), ALGORITHM)


def gradient(before: Exported, trainer: Trainer) -> Floats:
    """The gradient that ``trainer`` holds: it is used up, and moves the weights, which were ``before``."""
    cast(AccumulatesGradients, trainer).apply(PROBE)
    step = flat(before) - flat(exported(trainer))
    return np.asarray(step / (1 - np.abs(step)))


def apart(one: Floats, other: Floats) -> float:
    """How far they differ, as a share of the first."""
    return float(np.linalg.norm(one - other) / np.linalg.norm(one))


class GradientTests:
    """Part of :class:`astraflow_testing.conformance.trainer.TrainerConformance`."""

    @capability("gradients")
    def test_the_gradient_is_that_of_the_loss(
        self, component: Subject, rig: TrainerRig, reference: Reference, tmp_path: Path
    ) -> None:
        trainer, batch = prepared(rig.build(), 0)
        assert batch.advantages is not None
        before = exported(cast(Trainer, trainer))
        trainer.accumulate(batch, ALGORITHM, 0)
        DEMANDS.that(
            exported(cast(Trainer, trainer)) == before,
            "accumulate() changed the weights",
            "the weights stay as they are",
        )
        losses, moved = [], flat(before)
        for lr in (0.0, 1e-2):
            trainer.apply(replace(PROBE, lr=lr))
            file = write_tensors(tmp_path / f"{lr}.safetensors", exported(cast(Trainer, trainer)))
            logprobs = token_logprobs(reference(file, batch), batch)
            losses.append(-float((batch.weights["policy"] * batch.advantages * logprobs).sum()))
            moved = flat(before) - flat(exported(cast(Trainer, trainer)))
            trainer.accumulate(batch, ALGORITHM, 0)
        step = moved / 1e-2
        slope = 1e-2 * float((step * step / (1 - np.abs(step))).sum())
        DEMANDS.that(
            math.isclose(losses[0] - losses[1], slope, rel_tol=0.05),
            f"a small step against the gradient took the loss down by {losses[0] - losses[1]:.4g} in float64 where the "
            f"gradient says {slope:.4g}",
            "the gradient of the loss",
        )

    @capability("gradients")
    def test_gradients_add_up(self, component: Subject, rig: TrainerRig) -> None:
        (whole, batch), (parts, _) = prepared(rig.build(), 0), prepared(rig.build(), 0)
        before = exported(cast(Trainer, whole))
        one = whole.accumulate(batch, ALGORITHM, 0)
        two = [
            parts.accumulate(batch.take(rows), ALGORITHM, 0)
            for rows in (np.arange(3), np.arange(3, len(batch)))
        ]
        for key in ("loss", "tokens", "mean_logprob"):
            DEMANDS.that(
                math.isclose(one[key], sum(part[key] for part in two), rel_tol=1e-4, abs_tol=1e-6),
                f"{key} is {one[key]:.6g} of a batch and {[part[key] for part in two]} of its parts",
                "metrics are those of the batch",
            )
        gradients = [gradient(before, cast(Trainer, each)) for each in (whole, parts)]
        DEMANDS.that(
            apart(*gradients) <= 0.01,
            f"the gradient of a batch and the sum of those of its parts differ by {apart(*gradients):.3g}",
            "accumulate() adds to the held gradient",
        )

    @capability("gradients")
    def test_a_pass_without_backward_keeps_the_gradient(
        self, component: Subject, rig: TrainerRig
    ) -> None:
        (one, batch), (other, _) = prepared(rig.build(), 0), prepared(rig.build(), 0)
        looked_at, before = (
            ready(cast(Trainer, one), ragged_batch(1), ALGORITHM),
            exported(cast(Trainer, one)),
        )
        expected = cast(Trainer, one).logprobs(looked_at, "current") * looked_at.loss_mask
        one.accumulate(batch, ALGORITHM, 0)
        other.accumulate(batch, ALGORITHM, 0)
        seen = other.accumulate(looked_at, ALGORITHM, 0, backward=False)
        got = cast(Trainer, other).step_logprobs()  # type: ignore[attr-defined]
        close_to(got, expected, 1e-4, "step_logprobs() after accumulate()")
        DEMANDS.that(
            math.isclose(
                seen["mean_logprob"],
                float((looked_at.weights["policy"] * expected).sum()),
                rel_tol=1e-3,
            ),
            f"mean_logprob of a pass without backward is {seen['mean_logprob']}",
            "it returns the metrics of this batch",
        )
        gradients = [gradient(before, cast(Trainer, each)) for each in (one, other)]
        DEMANDS.that(
            apart(*gradients) <= 0.01,
            "a pass with backward=False changed the held gradient",
            "without `backward` the held gradient is unchanged",
        )

    @capability("gradients")
    def test_a_step_is_that_of_adamw(self, component: Subject, rig: TrainerRig) -> None:
        whole = rig.build()
        trainer = cast(AccumulatesGradients, whole)
        moments = np.zeros((2, len(flat(exported(whole)))))
        for number, settings in enumerate(STEPS, start=1):
            batch = ready(whole, ragged_batch(number), ALGORITHM)
            before = exported(whole)
            trainer.accumulate(batch, ALGORITHM, 0)
            metrics = trainer.apply(settings)
            probe = cast(AccumulatesGradients, rig.build(model=_model_of(rig, before, number)))
            probe.accumulate(batch, ALGORITHM, 0)
            g = gradient(before, cast(Trainer, probe))
            norm = float(np.linalg.norm(g))
            DEMANDS.that(
                math.isclose(metrics["grad_norm"], norm, rel_tol=0.02)
                and metrics["lr"] == settings.lr,
                f"apply() reports grad_norm {metrics['grad_norm']:.4g} and lr {metrics['lr']}; the gradient has "
                f"{norm:.4g}",
                "grad_norm, before clipping, and lr",
            )
            if settings.max_grad_norm:
                g = g * min(1.0, settings.max_grad_norm / norm)
            expected = _adamw(moments, g, settings, number)
            update = flat(before) - flat(exported(whole))
            DEMANDS.that(
                apart(expected, update) <= 0.02,
                f"step {number} with {settings} differs from AdamW by {apart(expected, update):.3g} of its size",
                "one AdamW step with the held gradient",
            )

    @capability("gradients")
    def test_weight_decay_takes_a_share_of_weights(
        self, component: Subject, rig: TrainerRig
    ) -> None:
        (one, batch), (other, _) = prepared(rig.build(), 0), prepared(rig.build(), 0)
        before = exported(cast(Trainer, one))
        for trainer, decay in ((one, 0.0), (other, 0.5)):
            trainer.accumulate(batch, ALGORITHM, 0)
            trainer.apply(replace(STEPS[1], weight_decay=decay))
        shares = (flat(exported(cast(Trainer, one))) - flat(exported(cast(Trainer, other)))) / (
            flat(before) + (flat(before) == 0)
        )
        share = 0.5 * STEPS[1].lr
        decayed = np.abs(shares) > share / 2
        DEMANDS.that(
            bool(decayed.any())
            and apart(np.full(int(decayed.sum()), share), shares[decayed]) < 0.05,
            f"weight_decay 0.5 at lr {STEPS[1].lr} took {np.median(shares[decayed]) if decayed.any() else 0:.3g} of "
            f"the weights, expected {share}",
            "decoupled weight decay: lr · weight_decay of a weight",
        )

    @capability("gradients")
    def test_restart_resets_the_optimizer(self, component: Subject, rig: TrainerRig) -> None:
        one, batch = prepared(rig.build(), 0)
        one.accumulate(batch, ALGORITHM, 0)
        one.apply(STEPS[0])
        one.accumulate(batch, ALGORITHM, 0)
        one.restart()
        with pytest.raises(ValueError, match="gradient"):
            one.apply(STEPS[0])
        before = exported(cast(Trainer, one))
        fresh = rig.build(model=_model_of(rig, before, 0))
        updates = []
        for trainer in (cast(Trainer, one), fresh):
            cast(AccumulatesGradients, trainer).accumulate(batch, ALGORITHM, 0)
            cast(AccumulatesGradients, trainer).apply(STEPS[1])
            updates.append(flat(before) - flat(exported(trainer)))
        DEMANDS.that(
            apart(*updates) <= 0.01,
            f"a step after restart() differs by {apart(*updates):.3g} of its size from the first one of a trainer on "
            "these weights",
            "continue as if no step had been made",
        )

    @capability("gradients")
    def test_a_gradient_is_used_once(self, component: Subject, rig: TrainerRig) -> None:
        trainer, batch = prepared(rig.build(), 0)
        trainer.accumulate(batch, ALGORITHM, 0)
        trainer.apply(STEPS[0])
        with pytest.raises(ValueError, match="gradient"):
            trainer.apply(STEPS[0])
        before = exported(cast(Trainer, trainer))
        trainer.accumulate(batch, ALGORITHM, 0)
        assert batch.advantages is not None
        poisoned = np.where(batch.loss_mask, np.nan, batch.advantages).astype(np.float32)
        with pytest.raises(NonFiniteLoss):
            trainer.accumulate(replace(batch, advantages=poisoned), ALGORITHM, 0)
        with pytest.raises(ValueError, match="gradient"):
            trainer.apply(STEPS[0])
        DEMANDS.that(
            exported(cast(Trainer, trainer)) == before,
            "a step that was refused changed the weights",
            "before the optimizer changes anything",
        )


def _adamw(moments: Floats, g: Floats, settings: AdamWStep, number: int) -> Floats:
    """Loshchilov & Hutter 2019, algorithm 2, in float64; ``moments`` ``[2, n]`` go on."""
    for row, beta, power in zip(moments, settings.betas, (g, g * g), strict=True):
        row *= beta
        row += (1 - beta) * power
    mean, square = (
        row / (1 - beta**number) for row, beta in zip(moments, settings.betas, strict=True)
    )
    return np.asarray(settings.lr * mean / (np.sqrt(square) + settings.eps))


def _model_of(rig: TrainerRig, weights: Exported, number: int) -> Path:
    """A folder of the model with other weights."""
    folder = rig.folder(f"step-{number}")
    for file in rig.model.iterdir():
        if file.is_file() and file.suffix != ".safetensors":
            (folder / file.name).write_bytes(file.read_bytes())
    write_tensors(folder / "model.safetensors", weights)
    return folder
