from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from astraflow_contrib_tiny_models import resolve as module
from astraflow_contrib_tiny_models.manifest import astraflow_resolve_model
from astraflow_contrib_tiny_models.resolve import resolve
from astraflow_core.errors import PreflightError

QUICKSTART = "tiny:qwen3?hidden=128&layers=2&heads=4&kv_heads=2&head_dim=32&ffn=384&context=64"


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_the_reference_describes_the_model(tmp_path: Path) -> None:
    folder = resolve(QUICKSTART, 0, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    assert (config["hidden_size"], config["num_hidden_layers"], config["head_dim"]) == (128, 2, 32)
    assert (config["max_position_embeddings"], config["vocab_size"]) == (64, 27)
    assert len(weights(folder)) > 4 * 397_440


def test_the_same_model_is_found_again_and_another_seed_makes_another(tmp_path: Path) -> None:
    first = resolve(QUICKSTART, 0, tmp_path)
    stamp = (first / "model.safetensors").stat()
    assert resolve(QUICKSTART, 0, tmp_path) == first
    assert (first / "model.safetensors").stat() == stamp
    other = resolve(QUICKSTART, 1, tmp_path)
    assert weights(other) != weights(first)
    assert weights(resolve(QUICKSTART + "&seed=1", 0, tmp_path)) == weights(other)


def test_words_and_flags(tmp_path: Path) -> None:
    reference = "tiny:qwen3?alphabet=_.ab%26%20&pad=_&eos=.&dtype=BF16&tie=false&init_std=0.5"
    folder = resolve(reference, 0, tmp_path)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode("a& b").ids == [2, 4, 5, 3]
    assert b"lm_head.weight" in weights(folder)


def test_a_model_that_reads_images(tmp_path: Path) -> None:
    reference = "tiny:llava?hidden=8&heads=2&alphabet=%20$ab%23&image=%23&image_size=6&patch_size=2"
    folder = resolve(reference, 0, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    assert (config["model_type"], config["image_token_index"]) == ("llava", 4)
    assert config["image_seq_length"] == 9
    with pytest.raises(PreflightError, match="unknown key 'image_size'; known: hidden"):
        resolve("tiny:qwen3?image_size=6", 0, tmp_path)
    with pytest.raises(PreflightError, match="image_size=7 is not a multiple of patch_size=2"):
        resolve("tiny:llava?image_size=7&patch_size=2", 0, tmp_path)


def test_other_schemes_are_left_to_others(tmp_path: Path) -> None:
    assert astraflow_resolve_model("pypi:x", 0, tmp_path, True) is None
    assert astraflow_resolve_model("tiny:qwen3", 0, tmp_path, False) is not None


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ("tiny:llama", "unknown architecture 'llama'; expected tiny:qwen3"),
        ("tiny:", "unknown architecture ''"),
        ("tiny:qwen3?hiden=4", "unknown key 'hiden'; known: hidden, "),
        ("tiny:qwen3?hidden", "bad query field"),
        ("tiny:qwen3?hidden=0", "hidden='0': expected a positive integer"),
        ("tiny:qwen3?hidden=1e3", "expected a positive integer"),
        ("tiny:qwen3?hidden=4&hidden=8", "hidden is given twice"),
        ("tiny:qwen3?hidden=30", "not a multiple of heads"),
        ("tiny:qwen3?tie=yes", "expected true or false"),
        ("tiny:qwen3?dtype=F8", "expected 'F32' or 'BF16'"),
        ("tiny:qwen3?eos=%3F", "is not one character of alphabet"),
    ],
)
def test_mistakes_are_named_and_leave_nothing(tmp_path: Path, reference: str, reason: str) -> None:
    with pytest.raises(PreflightError) as caught:
        resolve(reference, 0, tmp_path)
    assert reference in str(caught.value)
    assert reason in str(caught.value)
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PreflightError, match="cannot write to the cache"):
        resolve(QUICKSTART, 0, tmp_path / "file")


def test_many_at_once_agree_on_one_folder(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda _: resolve(QUICKSTART, 0, tmp_path), range(8)))
    assert len(found) == 1
    assert len(list((tmp_path / "tiny").iterdir())) == 1


def test_a_failure_in_the_middle_leaves_no_half_made_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(directory: Path, **_: object) -> None:
        (directory / "config.json").write_text("{}")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setitem(module._WRITERS, "qwen3", half)
        with pytest.raises(PreflightError, match="No space left on device"):
            resolve(QUICKSTART, 0, tmp_path)
    assert list((tmp_path / "tiny").iterdir()) == []
    assert weights(resolve(QUICKSTART, 0, tmp_path))
