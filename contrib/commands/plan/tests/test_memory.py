"""The formulas beside real tensors: parameters, what AdamW holds, caches, and what PyTorch keeps for a backward pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from astraflow_contrib_plan.memory import (
    EngineSetting,
    TrainerSetting,
    engine_memory,
    kept_per_token,
    trainer_memory,
)
from astraflow_contrib_plan.shapes import ModelShape, read_shape

pytestmark = pytest.mark.slow
SIZES: dict[str, Any] = {
    "vocab_size": 512, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 3,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}  # fmt: skip
TOKENS = 250


def model(kind: str, folder: Path, **more: Any) -> tuple[Any, ModelShape]:
    """A transformers model with random weights, and its sizes as a plan reads them."""
    config = AutoConfig.for_model(kind, **SIZES, **more)
    config.save_pretrained(folder)
    built = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    return built.train(), read_shape(folder)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral"])
def test_parameters_are_those_of_a_model_on_the_meta_device(kind: str, tmp_path: Path) -> None:
    with torch.device("meta"):
        built, shape = model(kind, tmp_path)
    assert shape.parameters == sum(p.numel() for p in built.parameters())
    assert shape.layer == sum(p.numel() for p in built.model.layers[0].parameters())


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("compute", [torch.float32, torch.bfloat16])
def test_activations_are_what_pytorch_keeps(
    kind: str, compute: torch.dtype, tmp_path: Path
) -> None:
    """Within a tenth of the bytes of the tensors that autograd saves."""
    built, shape = model(kind, tmp_path)
    weights = {p.untyped_storage().data_ptr() for p in built.parameters()}
    kept: dict[int, int] = {}

    def save(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights and TOKENS in tensor.shape:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    ids = torch.randint(0, 512, (1, TOKENS))
    narrow = compute is not torch.float32
    with (
        torch.autocast("cpu", dtype=torch.bfloat16, enabled=narrow),
        torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor),
    ):
        result = built.model(input_ids=ids, use_cache=False).last_hidden_state
    measured = sum(kept.values())
    planned = TOKENS * shape.layers * kept_per_token(shape, 2 if narrow else 4)
    assert result.requires_grad
    assert 0.9 < planned / measured < 1.1, (planned, measured)


@pytest.mark.parametrize("lora", [0, 8])
def test_weights_gradients_and_moments_are_those_of_adamw(lora: int, tmp_path: Path) -> None:
    built, shape = model("qwen3", tmp_path)
    targets = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    trained = list(built.parameters())
    if lora:
        linear = [m for n, m in built.named_modules() if n.rpartition(".")[2] in targets]
        built.requires_grad_(False)
        trained = []
        for layer in linear:
            low = torch.nn.Linear(layer.in_features, lora, bias=False)
            high = torch.nn.Linear(lora, layer.out_features, bias=False)
            trained += [low.weight, high.weight]
            path = torch.nn.Sequential(low, high)
            layer.register_forward_hook(lambda _, given, out, path=path: out + path(given[0]))
    optimizer = torch.optim.AdamW(trained)
    built(input_ids=torch.randint(0, 512, (1, 8))).logits.sum().backward()
    optimizer.step()
    parts = trainer_memory(
        shape, TrainerSetting("torch", 1, 8, 8, lora_rank=lora, lora_targets=targets, gpu=False)
    )
    adapters = sum(p.nbytes for p in trained) if lora else 0
    assert parts["weights"] == sum(p.nbytes for p in built.parameters()) + adapters
    assert parts["gradients"] == sum(p.grad.nbytes for p in trained if p.grad is not None)
    moments = [
        value.nbytes
        for state in optimizer.state.values()
        for name, value in state.items()
        if name != "step"
    ]
    assert parts["optimizer"] == sum(moments)


def test_keys_and_values_are_those_of_a_cache(tmp_path: Path) -> None:
    built, shape = model("qwen3", tmp_path)
    with torch.inference_mode():
        cache = built(input_ids=torch.randint(0, 512, (1, TOKENS)), use_cache=True).past_key_values
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert held == 4 * TOKENS * shape.cache_per_token
    setting = EngineSetting("torch", 4, cache_gb=0.25, gpu=False)
    parts = engine_memory(shape, setting, 0.0)
    assert parts["weights"] == sum(p.nbytes for p in built.parameters())
