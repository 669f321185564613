"""Tests of a trainer that declares ``images``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from astraflow_core.types import Batch
from astraflow_core.types.generation import images_between
from astraflow_testing.conformance._checks import capability
from astraflow_testing.conformance._models.images import llava
from astraflow_testing.conformance._models.images.rows import joined, pictured_rows
from astraflow_testing.conformance._models.qwen3 import Floats, log_softmax
from astraflow_testing.conformance._models.trainer_checks import close_to
from astraflow_testing.conformance._models.trainer_rig import (
    DEMANDS,
    Exported,
    PolicyGradient,
    TrainerRig,
    exported,
    ragged_batch,
    ready,
    same_update,
)
from astraflow_testing.conformance.subject import Subject
from astraflow_testing.images.pictures import write_picture_model
from astraflow_wire.images.model import ImageModel

TRAINED = ("vision_tower", "multi_modal_projector", "language_model")


class TrainerImageTests:
    """Part of :class:`astraflow_testing.conformance.trainer.TrainerConformance`."""

    tolerance: float

    @pytest.fixture
    def picture_model(self, tmp_path: Path) -> Path:
        """The folder of a model that reads images, of the LLaVA architecture."""
        return write_picture_model(tmp_path / "pictured")

    @capability("images")
    def test_images_are_read_at_their_placeholders(
        self, component: Subject, rig: TrainerRig, picture_model: Path
    ) -> None:
        """In log-probs and in a step, which trains all parts of the model."""
        batch = pictured_batch(picture_model)
        expected = pictured_logprobs(picture_model, batch)
        updates = []
        for variant in rig.variants:
            trainer, algorithm = rig.build(variant, model=picture_model), PolicyGradient()
            before = exported(trainer)
            got = trainer.logprobs(batch, "current")
            close_to(got, expected, self.tolerance, f"logprobs() of rows with images, {variant},")
            given = ready(trainer, batch, algorithm)
            loss = trainer.step(given, algorithm, 0)["loss"]
            assert given.advantages is not None
            right = float(-(given.weights["policy"] * given.advantages * expected).sum())
            DEMANDS.that(
                abs(loss - right) <= 1e-4 * max(1, abs(right)),
                f"the loss of a step with images is {loss:.6f}, {variant}, expected {right:.6f}",
                "images are at their positions in the trained model",
            )
            updates.append(exported(trainer))
            still = [
                part
                for part in TRAINED
                if all(
                    bytes(before[name].data) == bytes(tensor.data)
                    for name, tensor in updates[-1].items()
                    if name.startswith(part)
                )
            ]
            DEMANDS.that(
                not still,
                f"a step with images, {variant}, does not change {', '.join(still)}",
                "the gradient goes through the images",
            )
            start, one, other = map(steered, (before, updates[0], updates[-1]))
            same, how = same_update(start, one, other, 1e-4)
            DEMANDS.that(same, f"with images, {variant}: {how}", "the same step for every cut")

    @capability("images")
    def test_damaged_images_are_refused(
        self, component: Subject, rig: TrainerRig, picture_model: Path
    ) -> None:
        batch = pictured_batch(picture_model)
        first, *others = batch.images
        damaged = replace(first, data=first.data[:60], digest="0" * 64)
        trainer = rig.build(model=picture_model)
        try:
            trainer.logprobs(replace(batch, images=(damaged, *others)), "current")
        except Exception as error:  # noqa: BLE001 (whatever it is, it is a refusal)
            assert str(error), "the error has no message"
        else:
            DEMANDS.broken("a truncated image file gave log-probs", "it is refused")


def steered(tensors: Exported) -> Exported:
    """Without the biases of keys: they add the same to all scores, so that their gradient is 0 and its rounding, which Adam
    makes as large as any step, is all that moves them."""
    return {name: value for name, value in tensors.items() if not name.endswith("k_proj.bias")}


def pictured_batch(folder: Path) -> Batch:
    """The rows of :func:`pictured_rows`, of which all tokens but the first ones and the placeholders are trained."""
    rows = pictured_rows(folder)
    tokens, lengths, images = joined(rows)
    mask = tokens != ImageModel.of(folder).token
    mask[np.cumsum(lengths) - lengths] = False
    rng = np.random.default_rng(0)
    return replace(
        ragged_batch(rows=len(rows)),
        lengths=lengths,
        tokens=tokens,
        loss_mask=mask,
        logprobs=np.where(mask, -3 - rng.random(len(tokens)), 0).astype(np.float32),
        versions=np.where(mask, 0, -1).astype(np.int32),
        images=images,
    )


def pictured_logprobs(folder: Path, batch: Batch) -> Floats:
    """Log-prob of each token ``[N]`` at the batch's temperature, 0 at the first of a row."""
    found = np.zeros(len(batch.tokens))
    for start, end in zip(batch.offsets[:-1].tolist(), batch.offsets[1:].tolist(), strict=True):
        seen = images_between(batch.images, start, end, 0)
        tokens = batch.tokens[start:end]
        logits = llava.logits(folder, folder / "model.safetensors", tokens[:-1], seen)
        logprobs = log_softmax(logits / batch.temperature)
        found[start + 1 : end] = logprobs[np.arange(len(tokens) - 1), tokens[1:]]
    return found
