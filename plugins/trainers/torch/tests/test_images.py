"""Sequences with images: log-probs and gradients are those of transformers, row by row in float64."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from trainer_cases import Surrogate, make_batch, prepared
from transformers import AutoImageProcessor, AutoModelForImageTextToText

from astraflow_core.errors import UserError
from astraflow_core.types import Batch, Images
from astraflow_core.types.generation import images_between
from astraflow_plugin_torch_trainer.trainer import TorchTrainer
from astraflow_testing.images.pictures import picture, prompt, write_picture_model
from astraflow_torch_training.gradient import Tally, accumulate
from astraflow_training.layouts import cut
from astraflow_wire.images.model import ImageModel

Build = Callable[..., TorchTrainer]


@pytest.fixture(scope="module")
def pictured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_picture_model(tmp_path_factory.mktemp("pictured"))


def pixels(folder: Path, images: Images) -> dict[str, Any]:
    """What the processor of transformers makes of images, as arguments of its model."""
    if not images:
        return {}
    processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    opened = [Image.open(io.BytesIO(image.data)) for image in images]
    return dict(processor(images=opened, return_tensors="pt"))


def picture_batch(folder: Path) -> Batch:
    """A ragged batch, in which rows have no image, one that other rows have, several in several turns, or one after the
    last trained token; two rows differ in their images alone."""
    model, (red, green) = ImageModel.of(folder), (picture(1), picture(2, (40, 3)))
    parts: list[tuple[Any, ...]] = [
        ([3, 4, 5, 6],),
        (red, [5, 6, 7]),
        (green, [5, 6, 7]),
        ([8], red, [9, 10], green, green, [11, 12, 13]),
        ([4], red, [5, 6], green),
        ([2, 3],),
    ]
    rows = [prompt(model, *each) for each in parts]
    lengths = np.array([len(tokens) for tokens, _ in rows], np.int32)
    starts = np.cumsum(lengths) - lengths
    tokens = np.concatenate([tokens for tokens, _ in rows])
    images: Images = tuple(
        image.moved(start)
        for (_, some), start in zip(rows, starts.tolist(), strict=True)
        for image in some
    )
    mask = tokens != model.token
    mask[starts] = False
    base = make_batch(rows=len(rows))
    rng = np.random.default_rng(0)
    return replace(
        base,
        lengths=lengths,
        tokens=tokens,
        loss_mask=mask,
        logprobs=np.where(mask, -3 - rng.random(len(tokens)), 0).astype(np.float32),
        versions=np.where(mask, 0, -1).astype(np.int32),
        images=images,
    )


def of_transformers(folder: Path, batch: Batch) -> tuple[Any, torch.Tensor]:
    """A model, and its distributions before each token, one row after the other: logits ``[N, V]``, float64."""
    model: Any = AutoModelForImageTextToText.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager"
    )
    found = []
    for start, end in zip(batch.offsets[:-1].tolist(), batch.offsets[1:].tolist(), strict=True):
        ids = torch.from_numpy(batch.tokens[start:end].astype(np.int64))[None]
        given = pixels(folder, images_between(batch.images, start, end, 0))
        given = {name: value.double() for name, value in given.items()}
        logits = model(input_ids=ids, **given).logits[0] / batch.temperature
        found.append(torch.cat([torch.zeros(1, logits.shape[1]), logits[:-1]]))
    return model, torch.cat(found)


def by_hand(folder: Path, batch: Batch) -> dict[str, torch.Tensor | None]:
    """The gradient of :class:`Surrogate`."""
    model, logits = of_transformers(folder, batch)
    distributions = torch.distributions.Categorical(logits=logits)
    logprobs = distributions.log_prob(torch.from_numpy(batch.tokens.astype(np.int64)))
    mask = torch.from_numpy(batch.loss_mask)
    assert batch.reference is not None
    behaviour, reference = (
        torch.from_numpy(each).double() for each in (batch.logprobs, batch.reference)
    )
    advantage = torch.from_numpy(batch.spread(batch.rewards - batch.group_mean)).double()
    each = -advantage * torch.exp(logprobs - behaviour) + 0.01 * (logprobs - reference) ** 2
    (each - 0.1 * distributions.entropy())[mask].sum().div(mask.sum()).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def test_logprobs_are_those_of_transformers(build: Build, pictured: Path) -> None:
    batch = picture_batch(pictured)
    _, logits = of_transformers(pictured, batch)
    targets = torch.from_numpy(batch.tokens.astype(np.int64))[:, None]
    expected = logits.log_softmax(-1).gather(-1, targets)[:, 0].detach().numpy()
    expected[batch.offsets[:-1]] = 0
    for keys in ({}, {"layout": "packed"}, {"micro_batch_tokens": 20}):
        trainer = build(pictured, **keys)
        for model in ("current", "reference"):
            np.testing.assert_allclose(trainer.logprobs(batch, model), expected, atol=1e-4)  # type: ignore[arg-type]
    rows = np.array([4, 3, 1])
    part = batch.take(rows)
    tokens = np.concatenate([np.arange(*batch.offsets[row : row + 2]) for row in rows])
    np.testing.assert_allclose(trainer.logprobs(part, "current"), expected[tokens], atol=1e-4)


@pytest.mark.parametrize(
    ("how", "keys"),
    [
        ({"budget": 10_000, "layout": "bucketed"}, {}),
        ({"budget": 24, "layout": "bucketed"}, {"gradient_checkpointing": True}),
        ({"budget": 10_000, "layout": "packed"}, {}),
        ({"budget": 30, "layout": "tree"}, {}),
    ],
)
def test_gradients_are_those_of_transformers(
    build: Build, pictured: Path, how: dict[str, Any], keys: dict[str, Any]
) -> None:
    """Those of the vision tower too; what it does not use has none."""
    trainer = build(pictured, **keys)
    batch = prepared(picture_batch(pictured), Surrogate(), trainer)
    model = trainer._model
    model.whole.zero_grad(set_to_none=True)
    accumulate(
        model, batch, Surrogate(), 0, cut(batch, batch.loss_mask, **how), Tally(model.device)
    )
    expected = by_hand(pictured, batch)
    found = {name: parameter.grad for name, parameter in model.whole.named_parameters()}
    assert found.keys() == expected.keys()
    assert sum(value is not None and "vision" in name for name, value in expected.items()) > 10
    for name, value in expected.items():
        got = found[name]
        if value is None or got is None:
            assert got is None or not got.any(), name
            continue
        scale = max(value.abs().max().item(), 1e-3)
        torch.testing.assert_close(got.double() / scale, value / scale, rtol=0, atol=1e-5, msg=name)


def test_the_saved_model_is_that_of_transformers(
    build: Build, pictured: Path, tmp_path: Path
) -> None:
    trainer = build(pictured, frozenset(), publish_dtype="float32")
    batch = prepared(picture_batch(pictured), Surrogate(frozenset()), trainer)
    before = trainer.logprobs(batch, "current")
    trainer.step(batch, Surrogate(frozenset()), 0)
    after = trainer.logprobs(batch, "current")
    assert np.abs(after - before).max() > 1e-5
    trainer.save_model(tmp_path / "saved")
    _, logits = of_transformers(tmp_path / "saved", batch)
    targets = torch.from_numpy(batch.tokens.astype(np.int64))[:, None]
    expected = logits.log_softmax(-1).gather(-1, targets)[:, 0].detach().numpy()
    expected[batch.offsets[:-1]] = 0
    np.testing.assert_allclose(after, expected, atol=1e-4)


def test_images_for_a_model_that_reads_none_are_refused(
    build: Build, folder: Path, pictured: Path
) -> None:
    batch = picture_batch(pictured)
    batch = replace(batch, tokens=np.minimum(batch.tokens, 26))
    with pytest.raises(UserError, match="the batch has images, and Qwen3ForCausalLM reads none"):
        build(folder).logprobs(batch, "current")
