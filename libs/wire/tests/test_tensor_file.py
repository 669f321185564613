from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from astraflow_core.errors import WireError
from astraflow_core.types.weights import DTYPE_BYTES
from astraflow_wire.model_files.tensor_file import lay_out, read_specs

Tensors = dict[str, tuple[str, tuple[int, ...]]]
tensors = st.dictionaries(
    st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__"),
    st.tuples(
        st.sampled_from(sorted(DTYPE_BYTES)),
        st.lists(st.integers(0, 4), max_size=3).map(tuple),
    ),
    max_size=6,
)


@given(tensors)
def test_safetensors_reads_what_is_laid_out(
    tmp_path_factory: pytest.TempPathFactory, chosen: Tensors
) -> None:
    header, specs = lay_out((name, *rest) for name, rest in chosen.items())
    size = specs[-1].end if specs else len(header)
    path: Path = tmp_path_factory.getbasetemp() / "laid-out.safetensors"
    path.write_bytes(header + bytes(size - len(header)))
    with safe_open(path, "np") as file:
        assert file.metadata() == {"format": "pt"}
        found = {
            name: (part.get_dtype(), tuple(part.get_shape()))
            for name in file.keys()  # noqa: SIM118 (not a mapping)
            for part in [file.get_slice(name)]
        }
    assert found == chosen
    assert read_specs(memoryview(path.read_bytes())) == tuple(
        sorted(specs, key=lambda spec: (spec.start, spec.end))
    )
    for spec in specs:
        assert spec.start % DTYPE_BYTES[spec.dtype] == 0
        assert spec.end - spec.start == math.prod(spec.shape) * DTYPE_BYTES[spec.dtype]


def test_order_of_tensors_does_not_matter() -> None:
    given_order = [("b", "F32", (2,)), ("a", "BF16", (3,)), ("c", "F32", (1,))]
    assert lay_out(given_order) == lay_out(reversed(given_order))
    assert [spec.name for spec in lay_out(given_order)[1]] == ["b", "c", "a"]


def test_what_cannot_be_laid_out_is_refused() -> None:
    with pytest.raises(WireError, match="'a' appears twice"):
        lay_out([("a", "F32", ()), ("a", "F32", ())])
    with pytest.raises(WireError, match="'a' has dtype 'F4'; known: BF16"):
        lay_out([("a", "F4", ())])


def _file(entries: object, data: int) -> memoryview:
    text = json.dumps(entries).encode()
    return memoryview(len(text).to_bytes(8, "little") + text + bytes(data))


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (memoryview(b"\xff" * 8 + b"{}"), "header of"),
        (memoryview(b"\2" + bytes(7) + b"[]"), "malformed"),
        (_file({"a": {"dtype": "U8"}}, 0), "malformed"),
        (_file({"a": {"dtype": "U8", "shape": [2], "data_offsets": [1, 3]}}, 3), "lies at"),
        (_file({"a": {"dtype": "U8", "shape": [3], "data_offsets": [0, 2]}}, 2), "lies at"),
        (_file({"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}}, 3), "tensors end at"),
        (_file({"a": {"dtype": "F4", "shape": [2], "data_offsets": [0, 2]}}, 2), "dtype 'F4'"),
    ],
)
def test_malformed_files_are_refused(file: memoryview, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        read_specs(file)


def test_safetensors_files_of_others_are_read(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    arrays = {"x": np.ones((2, 3), np.float32), "y": np.zeros(5, np.int64)}
    save_file(arrays, tmp_path / "other.safetensors")
    data = (tmp_path / "other.safetensors").read_bytes()
    for spec in read_specs(memoryview(data)):
        assert data[spec.start : spec.end] == arrays[spec.name].tobytes()
