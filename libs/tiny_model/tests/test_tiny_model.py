from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from astraflow_tiny_model.folder import ALPHABET, write_tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), hidden=32, layers=2, seed=7)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dtype": "BF16"},
        {
            "tie": False,
            "head_dim": 6,
            "ffn": 20,
            "heads": 6,
            "kv_heads": 3,
            "alphabet": "_.ab",
            "pad": "_",
            "eos": ".",
        },
    ],
    ids=["default", "bf16", "untied"],
)
def test_transformers_loads_every_weight(tmp_path: Path, options: dict[str, object]) -> None:
    import torch
    import transformers

    write_tiny_model(tmp_path, hidden=32, context=40, **options)  # type: ignore[arg-type]
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, output_loading_info=True, dtype="auto"
    )
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert not report["mismatched_keys"]
    assert model.config.max_position_embeddings == 40
    assert model.dtype == (torch.bfloat16 if options.get("dtype") == "BF16" else torch.float32)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[2, 3, 1]])).logits
    assert logits.shape == (1, 3, len(options.get("alphabet", ALPHABET)))  # type: ignore[arg-type]
    assert torch.isfinite(logits).all()
    assert (model.generation_config.eos_token_id, model.generation_config.pad_token_id) == (1, 0)


def test_initialisation_is_that_of_transformers(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    matrices = [w for name, w in weights.items() if w.ndim == 2 and "embed" not in name]
    values = np.concatenate([w.ravel() for w in matrices])
    assert values.std() == pytest.approx(0.02, rel=0.02)
    assert abs(values.mean()) < 2e-4
    assert all((w == 1).all() for w in weights.values() if w.ndim == 1)
    assert not weights["model.embed_tokens.weight"][0].any()


def test_rope_base_is_ten_thousand(folder: Path) -> None:
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    assert config.rope_parameters["rope_theta"] == 10000.0
    assert config.rope_parameters["rope_type"] == "default"


def test_bfloat16_rounds_as_torch_does(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file as load_tensors

    wide = write_tiny_model(tmp_path / "f32", seed=3)
    narrow = write_tiny_model(tmp_path / "bf16", seed=3, dtype="BF16")
    expected = load_tensors(wide / "model.safetensors")
    for name, value in load_tensors(narrow / "model.safetensors").items():
        assert torch.equal(value, expected[name].to(torch.bfloat16)), name


def test_same_seed_same_bytes_other_seed_other_bytes(tmp_path: Path) -> None:
    first, again, other = (
        (write_tiny_model(tmp_path / name, seed=seed) / "model.safetensors").read_bytes()
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first == again != other


@given(text=st.text(alphabet=ALPHABET, max_size=40))
def test_text_round_trips_character_by_character(folder: Path, text: str) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert ids == [ALPHABET.index(character) for character in text]
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert tokenizer.decode(ids, skip_special_tokens=True) == text.replace("$", "")


def test_unknown_characters_are_refused(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    with pytest.raises(Exception, match="UNK"):
        tokenizer.encode("Z")


def test_auto_tokenizer_agrees(folder: Path) -> None:
    import transformers

    fast = transformers.AutoTokenizer.from_pretrained(folder)
    plain = Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = "x12345=87654$"
    assert fast(text)["input_ids"] == plain.encode(text).ids
    assert fast.decode(plain.encode(text).ids, skip_special_tokens=True) == "x12345=87654"
    assert (fast.eos_token_id, fast.pad_token_id, len(fast)) == (1, 0, len(ALPHABET))
    messages = [{"role": "user", "content": "x1"}, {"role": "assistant", "content": "=8"}]
    assert fast.apply_chat_template(messages, tokenize=False) == "x1=8$"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"alphabet": "aab$ "}, "twice"),
        ({"eos": "?"}, "eos='\\?'"),
        ({"pad": "$"}, "both"),
        ({"hidden": 30}, "multiple of heads"),
        ({"kv_heads": 3}, "multiple of kv_heads"),
        ({"head_dim": 5}, "odd"),
        ({"dtype": "F16"}, "expected 'F32' or 'BF16'"),
    ],
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, options: dict[str, object], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        write_tiny_model(tmp_path, **options)  # type: ignore[arg-type]


def test_config_names_the_requested_sizes(tmp_path: Path) -> None:
    write_tiny_model(tmp_path, hidden=128, layers=2, heads=4, kv_heads=2, head_dim=32, ffn=384)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["hidden_size"], config["intermediate_size"], config["head_dim"]) == (
        128,
        384,
        32,
    )
    weights = load_file(tmp_path / "model.safetensors")
    assert sum(w.size for w in weights.values()) == 397_440
