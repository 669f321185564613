"""The digest of a model's folder is that of the version which its tensors make."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from astraflow_core.errors import WireError
from astraflow_core.types import ExportedTensor
from astraflow_tiny_model.folder import write_tiny_model
from astraflow_weights.snapshot import Snapshotter
from astraflow_wire.model_files.model_digest import digest_of_model


def published(tensors: dict[str, np.ndarray]) -> str:
    exported = [
        ExportedTensor(n, "F32", t.shape, np.ascontiguousarray(t)) for n, t in tensors.items()
    ]
    return Snapshotter("p").take(0, exported, None).manifest.digest


def test_it_is_the_digest_of_a_published_version_however_the_files_are_cut(tmp_path: Path) -> None:
    tensors = load_file(write_tiny_model(tmp_path / "model") / "model.safetensors")
    tensors["more"] = np.random.default_rng(0).normal(size=(1100, 1001)).astype(np.float32)
    save_file(tensors, tmp_path / "whole.safetensors", {"format": "pt", "anything": "else"})
    names = sorted(tensors)
    for number in range(3):
        part = {name: tensors[name] for name in names[number::3]}
        save_file(part, tmp_path / f"part-{number}.safetensors")
    parts = sorted(tmp_path.glob("part-*"))
    expected = published(tensors)
    assert digest_of_model([tmp_path / "whole.safetensors"]) == expected
    assert digest_of_model(parts) == digest_of_model(parts[::-1]) == expected
    tensors["more"][1099, 1000] += 1
    save_file(tensors, tmp_path / "whole.safetensors")
    assert digest_of_model([tmp_path / "whole.safetensors"]) == published(tensors) != expected


def test_a_tensor_that_is_in_two_files_is_refused(tmp_path: Path) -> None:
    for name in "ab":
        save_file({"w": np.zeros(2, np.float32)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(WireError, match=r"'w' is in .*a.safetensors and in .*b.safetensors"):
        digest_of_model(sorted(tmp_path.glob("*.safetensors")))
