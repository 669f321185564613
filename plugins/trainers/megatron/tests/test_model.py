"""Models in one process, held against transformers; and the split softmax against an ordinary one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from megatron_cases import NO_CUDA, STEPS, Course, make_batch, write_model
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM

pytestmark = [pytest.mark.backend, NO_CUDA]


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama", "qwen3_moe"])
def test_log_probs_and_export_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", kind, shard_size="9KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    course = Course("megatron", {}, folder, tmp_path)
    try:
        batch = make_batch(0)
        got = course.trainer.logprobs(batch, "current")
        exported = course.weights()
        scaled = course.trainer._policy.rotary_pos_emb.inv_freq
    finally:
        course.trainer.close()
    for start, end in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
        ids = torch.from_numpy(batch.tokens[start:end].astype(np.int64))
        with torch.no_grad():
            logits = model(ids[None]).logits[0, :-1] / batch.temperature
        expected = torch.log_softmax(logits, -1).gather(1, ids[1:, None])[:, 0].numpy()
        np.testing.assert_allclose(got[start + 1 : end], expected, atol=1e-5)
    held = {n: t for file in folder.glob("*.safetensors") for n, t in load_file(file).items()}
    assert exported.keys() == held.keys()
    for name, tensor in held.items():
        assert np.array_equal(exported[name], tensor), name
    torch.testing.assert_close(scaled.float(), model.model.rotary_emb.inv_freq.float())


def test_a_large_step_differs_where_adam_makes_much_of_little_only(tmp_path: Path) -> None:
    """With a learning rate of 1e-3 log-probs stay as near as before the first step, once ``eps`` is above the noise
    of the gradient: the step of Adam is lr · g / (|g| + eps) at first, whatever the size of g."""
    keys = {"lr": 1e-3, "eps": 1e-6}
    model = write_model(tmp_path / "model", "llama")
    expected, got = (
        Course("torch", keys, model, tmp_path),
        Course("megatron", keys, model, tmp_path),
    )
    for number in range(STEPS):
        batch = expected.sampled(number)
        apart = np.abs(
            got.trainer.logprobs(batch, "current") - expected.trainer.logprobs(batch, "current")
        )
        assert apart.max() <= 1e-5, number
        expected.step(batch, number)
        got.step(batch, number)
    weights = got.weights()
    for name, value in expected.weights().items():
        assert np.abs(weights[name] - value).max() <= 1e-3 * keys["lr"] * STEPS, name
    got.trainer.close()


def test_a_softmax_in_chunks_is_an_ordinary_one(tmp_path: Path) -> None:
    from astraflow_plugin_megatron.model.logprobs import token_logprobs

    course = Course("megatron", {}, write_model(tmp_path / "model", "qwen3"), tmp_path)
    try:
        group = course.trainer._ranks.tensor_group
        generator = torch.Generator().manual_seed(1)
        weight = torch.randn(31, 8, generator=generator)  # two rows of padding
        targets = torch.randint(0, 29, (50,), generator=generator)
        upstream = torch.randn(2, 50, generator=generator)
        found = []
        for at_once in (1 << 20, 31 * 7):
            hidden = torch.randn(50, 8, generator=torch.Generator().manual_seed(2)).requires_grad_()
            given = token_logprobs(
                lambda h: h @ weight.T, hidden, targets, 0.7, 29, group, True, at_once
            )
            (given * upstream).sum().backward()
            found.append((given.detach(), hidden.grad))
        exact = torch.randn(50, 8, generator=torch.Generator().manual_seed(2)).double()
        exact.requires_grad_()
        logs = torch.log_softmax(exact @ weight[:29].double().T / 0.7, -1)
        expected = torch.stack(
            [logs.gather(1, targets[:, None])[:, 0], -(logs.exp() * logs).sum(-1)]
        )
        (expected * upstream).sum().backward()
    finally:
        course.trainer.close()
    for given, gradient in found:
        assert gradient is not None and exact.grad is not None
        torch.testing.assert_close(given.double(), expected.detach(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(gradient.double(), exact.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "algorithm"), [("qwen3", "grpo"), ("qwen3_moe", "ppo")])
def test_a_bfloat16_model_learns_with_float32_weights_behind_it(
    kind: str, algorithm: str, tmp_path: Path
) -> None:
    folder = write_model(tmp_path / "model", kind)
    keys = {"compute_dtype": "bfloat16", "publish_dtype": "bfloat16", "lr": 1e-5}
    course = Course("megatron", keys, folder, tmp_path, algorithm=algorithm)
    try:
        before = {t.name: bytes(t.data) for t in course.trainer.export()}
        for number in range(4):
            course.step(course.sampled(number), number)
        masters = [p for g in course.trainer._optimizer.groups for p in g["params"]]
        after = {t.name: bytes(t.data) for t in course.trainer.export()}
        values = course.values(make_batch(0))
    finally:
        course.trainer.close()
    assert all(master.dtype == torch.float32 for master in masters)
    # Steps this small are below a digit of bfloat16 for most weights: only the float32 ones hold them.
    changed = np.mean([before[n] != after[n] for n in before])
    assert any(torch.any(m != m.bfloat16().float()) for m in masters) and changed > 0
    assert values is None if algorithm == "grpo" else values.any()
