"""The checks of a version's file, made from headers alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from astraflow_core.errors import UserError, WeightsError
from astraflow_serving.model_folder import (
    ModelConfig,
    ModelFolder,
    chunks,
    link_version,
    specs_of,
)
from astraflow_tiny_model.folder import write_tiny_model
from astraflow_wire.model_files.tensor_file import lay_out

Shapes = dict[str, tuple[str, tuple[int, ...]]]


def shapes_of(file: Path) -> Shapes:
    return {spec.name: (spec.dtype, spec.shape) for spec in specs_of(file)}


def write(path: Path, shapes: Shapes) -> Path:
    """A file of such tensors, all zero."""
    header, specs = lay_out((name, dtype, shape) for name, (dtype, shape) in shapes.items())
    path.write_bytes(header + bytes(specs[-1].end - len(header)))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> ModelFolder:
    return ModelFolder.read(write_tiny_model(tmp_path / "model"))


def test_reads_what_the_engine_must_know(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "m", context=96, tie=False, alphabet=" $ab", layers=1)
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 3]}))
    folder = ModelFolder.read(model)
    assert folder.config == ModelConfig(4, 96, (1, 3), False)
    assert folder.files == (model / "model.safetensors",)
    assert folder.tensors["lm_head.weight"].shape == (4, 64)
    (model / "generation_config.json").unlink()
    assert ModelConfig.read(model).eos == (1,)


@pytest.mark.parametrize("spoil", ["config.json", "model.safetensors"])
def test_a_folder_that_is_no_model_is_the_users_mistake(tmp_path: Path, spoil: str) -> None:
    model = write_tiny_model(tmp_path / "m")
    (model / spoil).write_text("{")
    with pytest.raises(UserError, match="Hugging Face folder"):
        ModelFolder.read(model)
    (model / spoil).unlink()
    with pytest.raises(UserError, match="Hugging Face folder"):
        ModelFolder.read(model)


def test_a_version_may_be_in_other_floats_and_files_and_name_a_tied_output(
    folder: ModelFolder, tmp_path: Path
) -> None:
    shapes = shapes_of(folder.files[0])
    names = sorted(shapes)
    halves = [{n: ("BF16", shapes[n][1]) for n in part} for part in (names[:5], names[5:])]
    halves[0]["lm_head.weight"] = ("F16", shapes["model.embed_tokens.weight"][1])
    folder.check([write(tmp_path / f"{i}.safetensors", half) for i, half in enumerate(halves)])
    untied = replace(folder, config=replace(folder.config, tied=False))
    with pytest.raises(WeightsError, match=r"unknown tensor 'lm_head\.weight'"):
        untied.check([tmp_path / "0.safetensors", tmp_path / "1.safetensors"])


NORM = "model.norm.weight"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda shapes: shapes.pop(NORM), "missing tensor 'model.norm.weight'"),
        (lambda shapes: shapes.update({"x.y": ("F32", (1,))}), "unknown tensor 'x.y'"),
        (lambda shapes: shapes.update({NORM: ("F32", (63,))}), r"shape \(63,\), expected \(64,\)"),
        (lambda shapes: shapes.update({NORM: ("I32", (64,))}), "is I32, expected BF16 or F16 or F32"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(
    folder: ModelFolder, tmp_path: Path, change: Callable[[Shapes], object], said: str
) -> None:
    shapes = shapes_of(folder.files[0])
    change(shapes)
    with pytest.raises(WeightsError, match=said):
        folder.check([write(tmp_path / "v.safetensors", shapes)])


def test_a_torn_or_absent_file_is_no_version(folder: ModelFolder, tmp_path: Path) -> None:
    whole = folder.files[0].read_bytes()
    torn = tmp_path / "torn.safetensors"
    for content in (whole[:-1], whole[:40], b""):
        torn.write_bytes(content)
        with pytest.raises(WeightsError, match="cannot read"):
            folder.check([torn])
    with pytest.raises(WeightsError, match="cannot read"):
        folder.check([tmp_path / "absent.safetensors"])


@pytest.mark.parametrize("most", [1, 20_000, 1 << 30])
def test_chunks_are_whole_in_order_and_small_enough(folder: ModelFolder, most: int) -> None:
    file = folder.files[0]
    sizes = {spec.name: spec.end - spec.start for spec in specs_of(file)}
    cut = list(chunks(file, most))
    assert [name for names in cut for name in names] == list(sizes)
    for names, following in zip(cut, [*cut[1:], []], strict=True):
        total = sum(sizes[name] for name in names)
        assert total <= most or len(names) == 1
        assert not following or total + sizes[following[0]] > most


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model", alphabet=" $ab")
    other = write_tiny_model(tmp_path / "other", alphabet=" $abcdef")
    ModelConfig.read(model)
    (other / "config.json").replace(other / "own.json")
    (other / "config.json").write_bytes((model / "config.json").read_bytes())
    with pytest.raises(UserError, match=r"ids up to 7, and the model a vocabulary of 4"):
        ModelConfig.read(other)
    (model / "tokenizer.json").unlink()  # token ids go in and out: none is needed
    ModelConfig.read(model)


def test_links_make_a_folder_like_the_models_with_other_weights(
    folder: ModelFolder, tmp_path: Path
) -> None:
    (folder.path / "model.safetensors.index.json").write_text("{}")
    other = write_tiny_model(tmp_path / "other", seed=1) / "model.safetensors"
    made = tmp_path / "made"
    made.mkdir()
    link_version(folder, [other], made)
    assert ModelFolder.read(made).config == folder.config
    assert [file.resolve() for file in made.glob("*.safetensors*")] == [other]
