"""The gradient is that of one large batch, computed here with transformers alone in float64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention import flex_attention
from trainer_cases import Surrogate, make_batch, make_branches, prepared
from transformers import AutoModelForCausalLM
from transformers.integrations import flex_attention as integration

from astraflow_core.errors import UserError
from astraflow_core.protocols.trainer import AdamWStep
from astraflow_core.types import Batch
from astraflow_plugin_torch_trainer.trainer import TorchTrainer
from astraflow_torch_training.gradient import Tally, accumulate
from astraflow_torch_training.logprobs import token_logprobs
from astraflow_torch_training.model import load_model
from astraflow_torch_training.trees import FLEX
from astraflow_training.layouts import cut

Build = Callable[..., TorchTrainer]


def by_hand(folder: Path, batch: Batch) -> tuple[dict[str, torch.Tensor], float]:
    """Gradient and loss of :class:`Surrogate`: row by row, whole logits, float64."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager"
    )
    total = torch.zeros((), dtype=torch.float64)
    trained = int(batch.loss_mask.sum())
    for row in range(len(batch)):
        start, end = int(batch.offsets[row]), int(batch.offsets[row + 1])
        ids = torch.from_numpy(batch.tokens[start:end].astype(np.int64))
        logits = model(input_ids=ids[None]).logits[0] / batch.temperature
        distributions = torch.distributions.Categorical(logits=logits)
        for token in range(start + 1, end):
            if not batch.loss_mask[token]:
                continue
            before = token - start - 1
            logprob = distributions.logits[before, batch.tokens[token]]
            ratio = torch.exp(logprob - float(batch.logprobs[token]))
            advantage = float(batch.rewards[row]) - float(batch.group_mean[row])
            assert batch.reference is not None
            gap = logprob - float(batch.reference[token])
            entropy = distributions.entropy()[before]
            total = total + (-advantage * ratio + 0.01 * gap**2 - 0.1 * entropy) / trained
    total.backward()
    return {name: p.grad for name, p in model.named_parameters()}, total.item()


def gradient(
    trainer: TorchTrainer, batch: Batch, **how: Any
) -> tuple[dict[str, torch.Tensor], Tally]:
    model = trainer._model
    model.whole.zero_grad(set_to_none=True)
    tally = Tally(model.device)
    keys = {"budget": 32, "layout": "bucketed", **how}
    parts = cut(batch, batch.loss_mask, **keys)
    accumulate(model, batch, Surrogate(), 0, parts, tally)
    return {name: p.grad.clone() for name, p in model.whole.named_parameters()}, tally


def assert_close(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        scale = max(value.abs().max().item(), 1e-3)
        torch.testing.assert_close(
            got[name].double() / scale, value.double() / scale, rtol=0, atol=5e-6, msg=name
        )


@pytest.mark.parametrize(
    "how",
    [
        {"budget": 10_000},
        {"budget": 40},
        {"budget": 1},
        {"budget": 10_000, "layout": "packed"},
        {"budget": 30, "layout": "packed"},
        {"budget": 10_000, "layout": "tree"},
        {"budget": 30, "layout": "tree"},
    ],
)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradient_equals_one_large_batch_by_hand(
    build: Build, folder: Path, how: dict[str, Any], checkpointing: bool
) -> None:
    trainer = build(folder, gradient_checkpointing=checkpointing)
    batch = prepared(make_branches(), Surrogate(), trainer)
    expected, loss = by_hand(folder, batch)
    got, tally = gradient(trainer, batch, **how)
    assert_close(got, expected)
    assert tally.sums["loss"].item() == pytest.approx(loss, rel=1e-5)


@pytest.mark.slow
def test_trees_have_the_same_gradient_with_flex_attention(
    build: Build, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Computed as PyTorch describes it, without the kernel, which needs CUDA."""
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *_: None)
    monkeypatch.setattr(
        integration, "compile_friendly_flex_attention",
        lambda query, key, value, training=False, **how: flex_attention.flex_attention(query, key, value, **how),
    )  # fmt: skip
    trainer = build(folder)
    batch = prepared(make_branches(), Surrogate(), trainer)
    expected, _ = by_hand(folder, batch)
    trainer._model = load_model(folder, torch.device("cpu"), FLEX, False, None)
    masks: list[Any] = []
    trainer._model.backbone.register_forward_pre_hook(
        lambda _, __, kwargs: masks.append(kwargs["attention_mask"]), with_kwargs=True
    )
    got, _ = gradient(trainer, batch, budget=10_000, layout="tree")
    assert masks and all(isinstance(mask, flex_attention.BlockMask) for mask in masks)
    assert_close(got, expected)


def test_flex_attention_is_refused_on_a_cpu(build: Build, folder: Path) -> None:
    with pytest.raises(UserError, match=r"'flex_attention' needs CUDA.*attention = 'auto'"):
        build(folder, attention="flex_attention")


def test_checkpointing_computes_layers_again_in_the_backward_pass(
    build: Build, folder: Path
) -> None:
    calls = []
    for checkpointing in (False, True):
        trainer = build(folder, gradient_checkpointing=checkpointing)
        batch, count = prepared(make_batch(), Surrogate(), trainer), []
        norm = trainer._model.backbone.layers[0].input_layernorm
        norm.register_forward_hook(lambda *_, count=count: count.append(1))
        gradient(trainer, batch, budget=10_000)
        calls.append(len(count))
    assert calls == [1, 2]


def test_untied_head_and_other_architectures(build: Build, tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=27, n_positions=32, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0.5,
        attn_pdrop=0.5, embd_pdrop=0.5, tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    trainer = build(tmp_path / "gpt2", gradient_checkpointing=True)
    batch = prepared(make_batch(), Surrogate(), trainer)
    expected, _ = by_hand(tmp_path / "gpt2", batch)
    assert_close(gradient(trainer, batch)[0], expected)


def test_chunks_of_logits_change_neither_values_nor_gradients() -> None:
    torch.manual_seed(0)
    head = torch.nn.Linear(8, 50, bias=True)
    targets = torch.randint(0, 50, (23,))
    outcomes = []
    for logits_at_once in (10_000, 50 * 7, 1):
        hidden = torch.linspace(-2, 2, 23 * 8).reshape(23, 8).requires_grad_()
        head.zero_grad()
        logprobs, entropy = token_logprobs(head, hidden, targets, 0.7, 50, True, logits_at_once)
        assert entropy is not None
        (logprobs * torch.arange(23) + entropy).sum().backward()
        outcomes.append(
            [x.detach().clone() for x in (logprobs, entropy, hidden.grad, head.weight.grad)]
        )
    expected = torch.distributions.Categorical(logits=head(hidden.detach()) / 0.7)
    torch.testing.assert_close(outcomes[0][0], expected.log_prob(targets))
    torch.testing.assert_close(outcomes[0][1], expected.entropy())
    for outcome in outcomes[1:]:
        for one, other in zip(outcome, outcomes[0], strict=True):
            torch.testing.assert_close(one, other)


def test_loss_inputs_hold_the_trained_positions_in_row_order(build: Build, folder: Path) -> None:
    trainer, algorithm = build(folder, micro_batch_tokens=24), Surrogate()
    batch = prepared(make_batch(), algorithm, trainer)
    trainer.step(batch, algorithm, 3)
    assert len(algorithm.seen) > 2
    assert sum(len(inputs.logprobs) for inputs in algorithm.seen) == batch.trained_tokens
    for inputs in algorithm.seen:
        assert inputs.mask.all()
        assert inputs.step == 3
        assert inputs.row.max() < inputs.rows
        assert (inputs.row.diff() >= 0).all()
        assert inputs.logprobs.dtype == inputs.entropy.dtype == torch.float32


def test_bfloat16_compute_is_close_and_keeps_float32_weights(build: Build, folder: Path) -> None:
    exact, rough = build(folder), build(folder, compute_dtype="bfloat16")
    batch = make_batch()
    np.testing.assert_allclose(
        rough.logprobs(batch, "current"), exact.logprobs(batch, "current"), atol=0.2
    )
    assert (rough.logprobs(batch, "current") != exact.logprobs(batch, "current")).any()
    algorithm = Surrogate()
    batch = prepared(batch, algorithm, rough)
    metrics = [trainer.step(batch, algorithm, 0) for trainer in (exact, rough)]
    assert metrics[1]["grad_norm"] == pytest.approx(metrics[0]["grad_norm"], rel=0.1)
    assert all(p.dtype == torch.float32 for p in rough._model.whole.parameters())


def test_a_gradient_that_is_accumulated_and_applied_is_a_step(build: Build, folder: Path) -> None:
    """To the bit: the same batch, whole, with the settings of the trainer's keys."""
    keys = {"lr": 1e-2, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.1, "max_grad_norm": 0.5}
    settings = AdamWStep(1e-2, (0.8, 0.9), 1e-6, 0.1, 0.5)
    native, driven = build(folder, **keys), build(folder, **keys)
    algorithm = Surrogate(frozenset({"entropy"}))
    for seed in range(2):
        batch = prepared(make_batch(seed), algorithm, native)
        expected = native.step(batch, algorithm, seed)
        metrics = driven.accumulate(batch, algorithm, seed)
        metrics |= driven.apply(settings)
        for key in ("loss", "loss_policy", "loss_entropy", "ratio_mean", "grad_norm", "lr"):
            assert metrics[key] == expected[key], key
        one, other = native.step_logprobs(), driven.step_logprobs()
        assert one is not None and other is not None and np.array_equal(one, other)
    for one, other in zip(
        native._model.whole.parameters(), driven._model.whole.parameters(), strict=True
    ):
        assert torch.equal(one, other)


def test_settings_of_adamw_are_refused_for_another_optimizer(build: Build, folder: Path) -> None:
    trainer, algorithm = build(folder, optimizer="muon"), Surrogate(frozenset())
    trainer.accumulate(prepared(make_batch(), algorithm, trainer), algorithm, 0)
    with pytest.raises(UserError, match="optimizer = 'adamw'"):
        trainer.apply(AdamWStep(1e-2))
