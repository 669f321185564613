"""Tests of the values that a trainer computes per token beside its log-prob: ``values``, ``logit_gradients``."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
import pytest

from astraflow_core.protocols.trainer import GivesLogitGradients
from astraflow_core.types import Batch
from astraflow_testing.conformance._checks import capability
from astraflow_testing.conformance._models.qwen3 import Floats, log_softmax
from astraflow_testing.conformance._models.trainer_rig import (
    DEMANDS,
    Reference,
    TrainerRig,
    ragged_batch,
)
from astraflow_testing.conformance.subject import Subject


class PerTokenTests:
    """Part of :class:`astraflow_testing.conformance.trainer.TrainerConformance`."""

    tolerance: float

    @capability("values")
    def test_values_are_one_per_token(self, component: Subject, rig: TrainerRig) -> None:
        batch = ragged_batch()
        values = rig.build(needs=frozenset({"values"})).values(batch)
        shaped = values.dtype == np.float32 and values.shape == batch.tokens.shape
        DEMANDS.that(
            shaped and bool(np.isfinite(values).all()),
            f"values() gave {values.dtype} {list(values.shape)} for {len(batch.tokens)} tokens",
            "float32 [N], finite",
        )

    @capability("logit_gradients")
    @pytest.mark.parametrize("temperature", [1.0, 0.7])
    def test_logit_gradients_are_those_of_an_independent_forward_pass(
        self,
        temperature: float,
        component: Subject,
        rig: TrainerRig,
        model: Path,
        reference: Reference,
    ) -> None:
        batch = ragged_batch(temperature=temperature)
        trainer = rig.build(rig.variants[-1], frozenset({"logit_gradients"}))
        got = cast(GivesLogitGradients, trainer).logit_gradients(batch)
        DEMANDS.that(
            got.dtype == np.float32 and got.shape == batch.tokens.shape,
            f"logit_gradients() gave {got.dtype} {list(got.shape)} for {len(batch.tokens)} tokens",
            "float32 [N]",
        )
        expected = squared_lengths(reference(model / "model.safetensors", batch), batch)
        error = np.abs(got - expected)
        worst = int(error.argmax())
        DEMANDS.that(
            bool((error <= self.tolerance).all()),
            f"logit_gradients() at temperature {temperature} is {got[worst]:.6f} at {worst} of {len(got)}, "
            f"expected {expected[worst]:.6f}",
            "the squared length of the gradient of each token's log-prob with respect to the logits divided by "
            "batch.temperature, 0 at the first token of a row",
        )


def squared_lengths(logits: Floats, batch: Batch) -> Floats:
    """Of the gradients, written out over the vocabulary: float64 ``[N]``."""
    gradients = -np.exp(log_softmax(logits / batch.temperature))
    gradients[np.arange(len(batch.tokens)), batch.tokens] += 1
    result = np.square(gradients).sum(-1)
    result[batch.offsets[:-1]] = 0.0
    return np.asarray(result)
