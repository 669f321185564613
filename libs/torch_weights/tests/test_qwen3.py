"""Qwen3 without transformers: its outputs equal those of transformers, which loads every other model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from astraflow_tiny_model.folder import write_tiny_model
from astraflow_torch_weights.qwen3 import GrowingCache, Qwen3ForCausalLM, empty_cache, load_qwen3
from astraflow_torch_weights.qwen3_config import WEIGHTS, Qwen3Config

IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 0]])
SEEN = torch.ones(11, 11, dtype=torch.bool).tril() & (torch.arange(121).view(11, 11) % 7 != 1)
SEEN |= torch.eye(11, dtype=torch.bool)
PASSES: dict[str, dict[str, Any]] = {
    "causal": {},
    "a mask": {"attention_mask": SEEN[None, None], "position_ids": torch.arange(11)[None] * 2},
    "some logits": {"logits_to_keep": torch.tensor([2, 7])},
    "packed": {"position_ids": torch.tensor([[0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3]])},
    "packed rows": {
        "position_ids": torch.tensor(
            [[0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3], [0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1]]
        )
    },
}


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("qwen3")
    return write_tiny_model(made, hidden=32, head_dim=16, init_std=0.3, tie=request.param)


def both(folder: Path, dtype: torch.dtype) -> tuple[Qwen3ForCausalLM, Any]:
    from transformers import AutoModelForCausalLM

    config = Qwen3Config.read(folder)
    assert config is not None
    return load_qwen3(
        config, load_file(folder / WEIGHTS), dtype
    ), AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)


@pytest.mark.backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_logits_are_those_of_transformers(folder: Path, dtype: torch.dtype) -> None:
    ours, theirs = both(folder, dtype)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert [n for n, _ in ours.named_parameters()] == [n for n, _ in theirs.named_parameters()]
    for how, arguments in PASSES.items():
        ids = IDS[:1] if how == "packed" else IDS
        got, expected = (
            model(input_ids=ids, use_cache=False, **arguments).logits for model in (ours, theirs)
        )
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6, msg=how)


@pytest.mark.backend
def test_a_cache_holds_what_that_of_transformers_holds(folder: Path) -> None:
    models = both(folder, torch.float32)
    caches = [empty_cache(model) for model in models]
    assert isinstance(caches[0], GrowingCache)
    for first, end in ((0, 4), (4, 5), (5, 11)):
        got, expected = (
            model(input_ids=IDS[:, first:end], past_key_values=cache, use_cache=True).logits
            for model, cache in zip(models, caches, strict=True)
        )
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(caches[0].layers, caches[1].layers, strict=True):
        torch.testing.assert_close(ours.keys, theirs.keys)
        torch.testing.assert_close(ours.values, theirs.values)


@pytest.mark.backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_gradients_are_those_of_transformers(folder: Path, dtype: torch.dtype) -> None:
    models = both(folder, dtype)
    for model in models:
        logits = model(input_ids=IDS, use_cache=False).logits
        logits.log_softmax(-1)[..., 3].mean().backward()
    for (name, ours), theirs in zip(
        models[0].named_parameters(), models[1].parameters(), strict=True
    ):
        assert ours.grad is not None
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-7, msg=name)


def changed(**keys: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | keys))

    return change


LEFT_TO_TRANSFORMERS: dict[str, Callable[[Path], object]] = {
    "rope scaling": changed(rope_scaling={"rope_type": "yarn", "factor": 4.0}),
    "other positions": changed(rope_parameters={"rope_type": "yarn", "rope_theta": 1e4}),
    "a window": changed(sliding_window=16, use_sliding_window=True),
    "sliding layers": changed(layer_types=["sliding_attention", "full_attention"]),
    "biases": changed(attention_bias=True),
    "another activation": changed(hidden_act="gelu"),
    "another architecture": changed(architectures=["LlamaForCausalLM"], model_type="llama"),
    "an unknown key": changed(quantization_config={"bits": 4}),
    "more layers than weights": changed(num_hidden_layers=3),
    "layers that are not named": changed(layer_types=["full_attention"]),
    "positions as text": changed(rope_theta="10000"),
    "dropout that is not a number": changed(attention_dropout=None),
    "ends as text": changed(eos_token_id="5"),
    "padding beyond the vocabulary": changed(pad_token_id=10**6),
    "padding as text": changed(pad_token_id="0"),
    "an adapter": lambda folder: (folder / "adapter_config.json").touch(),
    "several files": lambda folder: (folder / "model.safetensors.index.json").touch(),
    "no config": lambda folder: (folder / "config.json").unlink(),
    "damaged weights": lambda folder: (folder / "model.safetensors").write_bytes(b"{"),
}  # fmt: skip


@pytest.mark.parametrize("what", LEFT_TO_TRANSFORMERS)
def test_other_folders_are_left_to_transformers(tmp_path: Path, what: str) -> None:
    write_tiny_model(tmp_path, hidden=16)
    assert Qwen3Config.read(tmp_path) is not None
    LEFT_TO_TRANSFORMERS[what](tmp_path)
    assert Qwen3Config.read(tmp_path) is None


def test_a_mask_of_padding_alone_is_refused(folder: Path) -> None:
    config = Qwen3Config.read(folder)
    assert config is not None
    model = load_qwen3(config, load_file(folder / WEIGHTS), torch.float32)
    with pytest.raises(ValueError, match=r"\[B or 1, 1, T, S\]; this one has \(2, 11\)"):
        model(input_ids=IDS, attention_mask=torch.ones(2, 11, dtype=torch.bool))


def test_positions_as_transformers_saves_them_are_known(tmp_path: Path) -> None:
    write_tiny_model(tmp_path, hidden=16)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    del config["rope_theta"], config["rope_scaling"]
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": 500.0}
    file.write_text(json.dumps(config))
    read = Qwen3Config.read(tmp_path)
    assert read is not None and read.rope_theta == 500.0


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    write_tiny_model(tmp_path, hidden=16)
    changed(intermediate_size=40)(tmp_path)
    config = Qwen3Config.read(tmp_path)
    assert config is not None
    with pytest.raises(ValueError, match="size mismatch"):
        load_qwen3(config, load_file(tmp_path / WEIGHTS), torch.float32)
