"""The checks of an adapter file, made from headers alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from astraflow_core.errors import WeightsError
from astraflow_serving.adapter import AdapterShape, adapter_shape
from astraflow_serving.model_folder import ModelFolder
from astraflow_tiny_model.folder import write_tiny_model
from astraflow_wire.model_files.tensor_file import lay_out

Q = "model.layers.0.self_attn.q_proj"
UP = "model.layers.1.mlp.up_proj"


def sides(module: str, a: tuple[int, ...], b: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    name = f"base_model.model.{module}"
    return {f"{name}.lora_A.weight": a, f"{name}.lora_B.weight": b}


def write(path: Path, shapes: dict[str, tuple[int, ...]]) -> Path:
    header, specs = lay_out((name, "F32", shape) for name, shape in shapes.items())
    path.write_bytes(header + bytes(specs[-1].end - len(header)))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> ModelFolder:
    """Hidden 64 in 4 heads of 16, so ``q_proj`` is ``[64, 64]``; ``up_proj`` is ``[192, 64]``."""
    return ModelFolder.read(write_tiny_model(tmp_path / "model"))


def test_rank_and_modules_are_read_from_the_names(folder: ModelFolder, tmp_path: Path) -> None:
    shapes = sides(UP, (4, 64), (192, 4)) | sides(Q, (4, 64), (64, 4))
    found = adapter_shape(folder, write(tmp_path / "a", shapes))
    assert found == AdapterShape(4, (Q, UP))


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        ({f"{Q}.weight": (64, 64)}, "unknown tensor 'model.layers.0.self_attn.q_proj.weight'"),
        (sides("model.layers.9.mlp.up_proj", (4, 64), (192, 4)), "unknown tensor"),
        (sides(Q, (4, 32), (64, 4)), "a weight of shape"),
        (sides(Q, (4, 64), (64, 5)), "a weight of shape"),
        (sides(Q, (4, 64), (64, 4)) | sides(UP, (8, 64), (192, 8)), r"ranks \[4, 8\]"),
        ({f"base_model.model.{Q}.lora_A.weight": (4, 64)}, "a weight of shape"),
        ({f"base_model.model.{Q}.lora_B.weight": (64, 4)}, r"ranks \[\]"),
        (sides("model.norm", (4, 64), (64, 4)), "a weight of shape"),
    ],
)
def test_what_does_not_fit_is_named(
    folder: ModelFolder, tmp_path: Path, shapes: dict[str, tuple[int, ...]], said: str
) -> None:
    with pytest.raises(WeightsError, match=said):
        adapter_shape(folder, write(tmp_path / "a", shapes))


def test_a_file_that_is_none_is_an_error_of_the_version(
    folder: ModelFolder, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(b"no safetensors")
    with pytest.raises(WeightsError, match="cannot read"):
        adapter_shape(folder, tmp_path / "a")
