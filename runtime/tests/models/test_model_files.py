"""What is wrong with a model folder is known, with its file, before any process starts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from astraflow_core.errors import PreflightError
from astraflow_runtime.models.files import check_config, check_context, check_exact, check_files
from astraflow_tiny_model.folder import write_tiny_model

INDEX = "model.safetensors.index.json"
WEIGHTS = "model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path, hidden=8, layers=1, heads=2, kv_heads=1)


def config_with(**changes: Any) -> Callable[[Path], object]:
    def spoil(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | changes))

    return spoil


def cut(name: str, most: int) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:most])


def put(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def remove(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def header_of(length: int) -> Callable[[Path], object]:
    return lambda folder: (folder / WEIGHTS).write_bytes(
        length.to_bytes(8, "little") + (folder / WEIGHTS).read_bytes()[8:]
    )


def indexed(places: Any) -> Callable[[Path], object]:
    return put(INDEX, json.dumps({"weight_map": places}).encode())


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (put("config.json", b'{\n "a": 1,\n "b" 2}'), r"config\.json: line 3, column 6: it is no"),
        (put("config.json", b""), r"config\.json: line 1, column 1"),
        (put("config.json", b'{"a": "\xff"}'), r"config\.json: it is not UTF-8 text \(byte 7\)"),
        (put("config.json", b"[" * 100_000), r"config\.json: its JSON is nested too deeply"),
        (put("config.json", b"[]"), r"config\.json: holds list, expected a JSON object"),
        (config_with(vocab_size="27"), r"config\.json: vocab_size is '27', expected a positive"),
        (config_with(vocab_size=True), "vocab_size is True"),
        (config_with(hidden_size=0), "hidden_size is 0"),
        (config_with(num_hidden_layers=1.5), r"num_hidden_layers is 1\.5"),
        (
            config_with(max_position_embeddings=[1]),
            r"max_position_embeddings is \[1\], expected an",
        ),
        (config_with(text_config=[]), r"text_config is \[\], expected an object"),
        (config_with(text_config={"vocab_size": "a"}), "vocab_size is 'a'"),
        (remove("tokenizer.json"), r"has no tokenizer\.json, which the RaaS needs"),
        (
            cut("tokenizer.json", 200),
            r"tokenizer\.json: line \d+, column \d+: it is not valid JSON",
        ),
        (put("tokenizer_config.json", b"{"), r"tokenizer_config\.json: line 1, column 2"),
        (put("generation_config.json", b"7"), r"generation_config\.json: holds int"),
        (
            remove(WEIGHTS),
            r"has no \*\.safetensors, so there are no weights to start from; download the model",
        ),
        (
            cut(WEIGHTS, 0),
            r"model\.safetensors is not a complete safetensors file: it is empty; download",
        ),
        (cut(WEIGHTS, 5), r"model\.safetensors is not a complete safetensors file"),
        (cut(WEIGHTS, 100), r"safetensors header of \d+ bytes in a file of 100"),
        (cut(WEIGHTS, 2000), r"tensors end at byte \d+ of a file of 2000"),
        (header_of(1 << 62), r"safetensors header of 4611686018427387904 bytes"),
        (header_of(16), "malformed safetensors header"),
        (put(WEIGHTS, b"version https://git-lfs.github.com/spec/v1\noid x"), "git lfs pull"),
        (
            indexed({"a": "model-00001-of-00002.safetensors", "b": WEIGHTS}),
            r"lacks model-00001-of-00002\.safetensors of the 2 files that .*index\.json names",
        ),
        (indexed({"unknown.weight": WEIGHTS}), r"says that 'unknown\.weight' is in model\.safe"),
        (indexed([1]), "weight_map is not an object"),
        (put(INDEX, b"{"), r"index\.json: line 1, column 2"),
    ],
)
def test_each_fault_is_one_line_with_its_file(
    folder: Path, spoil: Callable[[Path], object], said: str
) -> None:
    spoil(folder)
    with pytest.raises(PreflightError, match=f"^policies.solver.model: .*{said}") as caught:
        check_files(folder, "policies.solver.model", weights=True)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("more", [{"num_experts": 8}, {"text_config": {"num_experts": 8}}])
def test_weights_of_another_number_of_experts(tmp_path: Path, more: dict[str, Any]) -> None:
    folder = write_tiny_model(tmp_path, hidden=8, layers=1, heads=2, kv_heads=1, experts=4, top_k=2)
    check_files(folder, "m", weights=True)
    config_with(**more)(folder)
    with pytest.raises(
        PreflightError,
        match=r"^m: .*mlp\.gate\.weight chooses among 4 experts, and config\.json has num_experts = 8; take both",
    ):
        check_files(folder, "m", weights=True)
    cut(WEIGHTS, 100)(folder)
    with pytest.raises(PreflightError, match="is not a complete safetensors file"):
        check_files(folder, "m", weights=True)


@pytest.mark.parametrize(
    "spoil",
    [
        config_with(max_position_embeddings=16),
        config_with(text_config={"max_position_embeddings": 16}),
    ],
)
def test_a_sequence_needs_room_for_a_prompt(folder: Path, spoil: Callable[[Path], object]) -> None:
    spoil(folder)
    check_context("solver", folder, 15)
    with pytest.raises(
        PreflightError, match=r"max_tokens: 16 leaves no room .* 'solver', 16 tokens"
    ):
        check_context("solver", folder, 16)


def test_pickles_are_told_apart_from_nothing(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")
    with pytest.raises(PreflightError, match=r"weights only in \*\.bin, which are pickles"):
        check_files(folder, "m", weights=True)


def test_sound_folders_pass(folder: Path) -> None:
    check_files(folder, "m", weights=True)
    assert check_config(folder, "m")["vocab_size"] == 27
    indexed({"model.norm.weight": WEIGHTS})(folder)
    check_files(folder, "m", weights=True)
    config_with(vocab_size=None, text_config={"vocab_size": 5})(folder)
    check_files(folder, "m", weights=True)


def test_without_weights_there_may_be_none_but_no_broken_ones(folder: Path) -> None:
    indexed({"a": "model-1.safetensors"})(folder)
    whole = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).unlink()
    check_files(folder, "engines.judge.model", weights=False)
    (folder / WEIGHTS).write_bytes(whole[:-1])
    with pytest.raises(
        PreflightError, match=r"^engines\.judge\.model: .*not a complete safetensors"
    ):
        check_files(folder, "engines.judge.model", weights=False)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "qwen3", "hidden_act": "silu", "layer_types": ["full_attention"]}, ""),
        ({"model_type": "qwen2", "hidden_act": "silu", "sliding_window": 8, "use_sliding_window": False}, ""),
        ({"model_type": "gpt2", "activation_function": "gelu_new"}, "has the activation 'gelu_new', not 'silu'"),
        ({"model_type": "gemma3", "text_config": {"hidden_activation": "gelu"}}, "has the activation 'gelu', not 'silu'"),
        ({"model_type": "mistral", "hidden_act": "silu", "sliding_window": 8}, "has attention in a sliding window"),
        ({"model_type": "lfm2", "layer_types": ["conv", "full_attention"]}, "has layers of conv"),
        ({"model_type": "mixtral", "hidden_act": "silu", "num_local_experts": 8}, "has experts"),
    ],
)  # fmt: skip
def test_batch_invariant_is_refused_by_what_the_config_says(
    config: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    if not reason:
        check_exact("solver", "m", tmp_path)
        return
    with pytest.raises(PreflightError) as caught:
        check_exact("solver", "m", tmp_path)
    where = "policies.solver.engine.batch_invariant: the model m "
    assert str(caught.value).startswith(f"{where}{reason}; leave batch_invariant out of engine")
