"""Recorded experts are imposed: against the same model without them, and against transformers with a patched router."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_gradient import assert_close, by_hand, gradient
from trainer_cases import Surrogate, make_batch, prepared
from transformers import AutoModelForCausalLM, MixtralConfig, MixtralForCausalLM

from astraflow_core.types import Batch
from astraflow_core.types.generation import RoutedExperts
from astraflow_plugin_torch_trainer.trainer import TorchTrainer
from astraflow_tiny_model.folder import write_tiny_model
from astraflow_torch_weights.routers import RouterRecorder

Build = Callable[..., TorchTrainer]
LAYERS, EXPERTS, TOP_K = 2, 6, 2


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("experts")
    return write_tiny_model(folder, hidden=32, ffn=16, init_std=0.2, experts=EXPERTS, top_k=TOP_K)


@pytest.fixture(scope="module")
def mixtral(experts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same sizes in another architecture."""
    given = json.loads((experts / "config.json").read_bytes())
    config = MixtralConfig(
        **given | {"model_type": "mixtral", "num_local_experts": EXPERTS, "intermediate_size": 16, "initializer_range": 0.2}
    )  # fmt: skip
    torch.manual_seed(2)
    folder = shutil.copytree(experts, tmp_path_factory.mktemp("mixtral") / "model")
    MixtralForCausalLM(config).save_pretrained(folder)
    return folder


def chosen_by(folder: Path, batch: Batch, noise: float) -> RoutedExperts:
    """The experts chosen by a model whose routers differ from those of ``folder`` by ``noise``."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    recorder = RouterRecorder(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("mlp.gate.weight"):
                parameter += noise * torch.randn(parameter.shape, generator=torch.manual_seed(1))
    rows = []
    for start, end in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
        ids = torch.from_numpy(batch.tokens[start:end].astype(np.int64))[None]
        rows.append(recorder.during(lambda ids=ids: model(input_ids=ids))[1])
    found: RoutedExperts = np.concatenate(rows)
    return found


def test_the_choices_of_the_trainer_itself_change_nothing(build: Build, experts: Path) -> None:
    trainer = build(experts)
    plain = prepared(make_batch(), Surrogate(), trainer)
    replayed = replace(plain, routed_experts=chosen_by(experts, plain, 0.0))
    one, other = trainer.logprobs(plain, "current"), trainer.logprobs(replayed, "current")
    assert np.abs(one - other).max() < 1e-6
    expected, _ = gradient(trainer, plain)
    found, _ = gradient(trainer, replayed)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-6, msg=name)


@pytest.mark.parametrize(
    ("kind", "how", "keys"),
    [
        ("experts", {"budget": 30}, {}),
        ("experts", {"budget": 30}, {"gradient_checkpointing": True}),
        ("experts", {"budget": 30, "layout": "packed"}, {}),
        ("experts", {"budget": 60, "layout": "tree"}, {}),
        ("mixtral", {"budget": 30}, {}),
    ],
)
def test_gradients_are_those_of_transformers_with_a_patched_router(
    build: Build,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    how: Any,
    keys: Any,
) -> None:
    experts = request.getfixturevalue(kind)
    trainer = build(experts, **keys)
    plain = prepared(make_batch(), Surrogate(), trainer)
    batch = replace(plain, routed_experts=chosen_by(experts, plain, 0.5))
    assert batch.routed_experts is not None
    assert (batch.routed_experts != chosen_by(experts, plain, 0.0)).any((1, 2)).mean() > 0.3
    replace_routers(monkeypatch, batch.routed_experts, batch)
    expected, loss = by_hand(experts, batch)
    monkeypatch.undo()
    found, tally = gradient(trainer, batch, **how)
    assert tally.sums["loss"].item() == pytest.approx(loss, rel=1e-5)
    held = {name: value for name, value in expected.items() if value is not None}
    assert any(name.endswith("mlp.gate.weight") and held[name].any() for name in held)
    assert_close(found, held)


def replace_routers(monkeypatch: pytest.MonkeyPatch, routed: RoutedExperts, batch: Batch) -> None:
    """Every router of transformers takes the experts of row after row: the rows of ``batch`` are what it reads."""
    from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

    calls = iter(
        routed[start:end, layer]
        for start, end in zip(batch.offsets[:-1], batch.offsets[1:], strict=True)
        for layer in range(LAYERS)
    )

    def forward(self: Any, hidden: torch.Tensor) -> Any:
        ids = torch.from_numpy(next(calls).astype(np.int64))
        logits = hidden.reshape(len(ids), -1) @ self.weight.T
        likely = torch.exp(logits - torch.logsumexp(logits, -1, keepdim=True))
        kept = likely[torch.arange(len(ids))[:, None], ids]
        return logits, kept / kept.sum(-1, keepdim=True), ids

    for router in (MixtralTopKRouter, Qwen3MoeTopKRouter):
        monkeypatch.setattr(router, "forward", forward)


def test_a_critic_and_a_reference_choose_for_themselves(build: Build, experts: Path) -> None:
    trainer = build(experts, needs=frozenset({"reference", "values"}), critic="model")
    plain = make_batch()
    batch = replace(plain, routed_experts=chosen_by(experts, plain, 0.5))
    with torch.no_grad():
        trainer._model.critic.whole["value_head"].weight.fill_(1.0)  # type: ignore[union-attr]
    np.testing.assert_allclose(trainer.values(batch), trainer.values(plain), atol=1e-5)
    reference = trainer.logprobs(batch, "reference")
    assert np.array_equal(reference, trainer.logprobs(plain, "reference"))
    assert np.abs(reference - trainer.logprobs(batch, "current")).max() > 1e-2
    assert np.array_equal(reference, trainer.logprobs(plain, "current"))
