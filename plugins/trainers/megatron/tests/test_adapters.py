"""Adapters in one process, against trainer ``torch`` and against the products written out; several ranks are in the
conformance suite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from megatron_cases import LR, NO_CUDA, STEPS, Course, make_batch, write_model
from megatron_launch import start_adapters

pytestmark = [pytest.mark.backend, NO_CUDA]

KEYS: dict[str, Any] = {"lora_rank": 3, "lora_targets": ("q_proj", "v_proj", "up_proj", "o_proj")}


def test_adapters_on_some_layers_train_as_those_of_torch(tmp_path: Path) -> None:
    """With layers computed again and values beside: what is frozen before an adapter must not end the gradient."""
    model = write_model(tmp_path / "model", "qwen3")
    keys = {**KEYS, "gradient_checkpointing": True}
    expected = Course("torch", keys, model, tmp_path, algorithm="ppo")
    start_adapters(expected)
    got = Course("megatron", keys, model, tmp_path, algorithm="ppo")
    try:
        first = got.trainer.logprobs(make_batch(0), "current")
        for number in range(STEPS):
            batch = expected.sampled(number)
            one, two = expected.step(batch, number), got.step(batch, number)
            assert two["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-4)
        theirs, ours = expected.weights(), got.weights()
        reference = got.trainer.logprobs(make_batch(0), "reference")
        now = got.trainer.logprobs(make_batch(0), "current")
    finally:
        got.trainer.close()
    assert ours.keys() == theirs.keys() and len(ours) == 2 * 2 * 4
    for name, value in theirs.items():
        assert np.abs(value - ours[name]).max() <= 0.05 * LR * STEPS, name
    assert np.array_equal(reference, first) and np.abs(now - first).max() > 1e-3


def test_bfloat16_adapters_learn_with_float32_ones_behind_them(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", "qwen3")
    keys = {**KEYS, "compute_dtype": "bfloat16", "publish_dtype": "bfloat16", "lr": 1e-2}
    course = Course("megatron", keys, model, tmp_path)
    try:
        batch = course.prepared(course.sampled(0))
        losses = [course.trainer.step(batch, course.algorithm, n)["loss"] for n in range(STEPS)]
        masters = [p for g in course.trainer._optimizer.groups for p in g["params"]]
        before = {name: value.clone() for name, value in state(course).items()}
        (tmp_path / "left").mkdir()
        course.trainer.save_model(tmp_path / "left")
    finally:
        course.trainer.close()
    assert losses[-1] < losses[0]
    assert all(master.dtype == torch.float32 for master in masters)
    assert sum(master.numel() for master in masters) == sum(
        value.numel() for name, value in before.items() if ".lora_" in name
    )


def state(course: Course) -> dict[str, torch.Tensor]:
    """Everything that the model holds here."""
    return dict(course.trainer._policy.named_parameters())


@pytest.mark.parametrize("fused", [False, True])
def test_what_is_added_is_the_product_of_both_matrices(fused: bool) -> None:
    """In the order in which Megatron-Core packs queries, keys and values, nothing where there is not an adapter; of a
    module that has the norm within it, of what the norm gives."""
    from astraflow_plugin_megatron.weights.adapters import Adapter, ModuleAdapters

    generator = torch.Generator().manual_seed(0)
    low, high = torch.randn(2, 6, generator=generator), torch.randn(8, 2, generator=generator)
    hidden = torch.randn(5, 1, 6, generator=generator)
    group: Any = FakeGroup()
    adapters = ModuleAdapters(
        {"q": Adapter(low, high)}, {"q": 8, "k": 4, "v": 4}, "qkv", 2, 0.5, group, False
    )
    module = torch.nn.Module()
    given = hidden
    if fused:
        module.layer_norm_weight = torch.nn.Parameter(torch.randn(6, generator=generator))
        module.eps = 1e-6
        given = hidden / (hidden.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
        given = given * module.layer_norm_weight
    product, bias = adapters.add(module, (hidden,), (torch.ones(5, 1, 16), None))
    whole = 0.5 * given @ low.T @ high.T
    nothing = torch.zeros(5, 1, 4)
    expected = torch.cat([whole[..., :4], nothing, whole[..., 4:], nothing], -1)
    torch.testing.assert_close(product - 1, expected, atol=1e-5, rtol=1e-5)
    assert bias is None


class FakeGroup:
    """Of one rank."""

    def size(self) -> int:
        return 1

    def rank(self) -> int:
        return 0
