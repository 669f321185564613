"""Tensors to publish, and how to read them back with nothing but safetensors."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors import deserialize

from astraflow_core.types import ExportedTensor
from astraflow_core.types.weights import DTYPE_BYTES

SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (7,), (3, 5), (2, 3, 4), (0,), (4, 0, 3))
_ARRAYS = {"F32": "<f4", "F16": "<f2", "I64": "<i8"}
Contents = dict[str, tuple[str, tuple[int, ...], bytes]]
"""Name → dtype, shape, bytes."""

_READ = """
import hashlib, json, sys
from safetensors import deserialize
with open(sys.argv[1], "rb") as file:
    entries = deserialize(file.read())
for name, entry in sorted(entries, key=lambda pair: pair[0]):
    told = [name, entry["dtype"], list(entry["shape"]), hashlib.sha256(bytes(entry["data"])).hexdigest()]
    sys.stdout.write(json.dumps(told) + "\\n")
"""


def every_dtype(seed: int) -> list[ExportedTensor]:
    """Each dtype in each of :data:`SHAPES`, filled with random bits (NaNs of every payload included)."""
    generator = np.random.default_rng(seed)
    return [
        _tensor(generator, f"model.layers.{index}.{dtype.lower()}.weight", dtype, shape)
        for dtype in DTYPE_BYTES
        for index, shape in enumerate(SHAPES)
    ]


def model(seed: int, mebibytes: int = 4) -> list[ExportedTensor]:
    """Random bf16 weights that span several blocks, with odd ends: two matrices and a vector."""
    generator = np.random.default_rng(seed)
    return [
        _tensor(generator, "model.embed_tokens.weight", "BF16", (mebibytes * 256, 1024)),
        _tensor(generator, "model.norm.weight", "F32", (1023,)),
        _tensor(generator, "lm_head.weight", "BF16", (mebibytes * 256 + 1, 1021)),
    ]


def adapter(seed: int) -> list[ExportedTensor]:
    """Random factors of rank 8 for a few modules, under PEFT's names."""
    generator = np.random.default_rng(seed)
    return [
        _tensor(
            generator,
            f"base_model.model.model.layers.{n}.mlp.up_proj.lora_{side}.weight",
            "F32",
            shape,
        )
        for n in range(3)
        for side, shape in (("A", (8, 1024)), ("B", (3000, 8)))
    ]


def marker_of(tensors: Iterable[ExportedTensor]) -> bytes:
    """32 bytes in the middle of the first tensor, which occur nowhere else."""
    data = bytes_of(next(iter(tensors)))
    return data[len(data) // 2 :][:32]


def changed(tensors: Iterable[ExportedTensor], seed: int) -> list[ExportedTensor]:
    """The tensors with one element in a thousand changed, as a small update does."""
    generator = np.random.default_rng(seed)
    result = []
    for tensor in tensors:
        data = np.frombuffer(bytes_of(tensor), np.uint8).copy()
        where = generator.integers(0, data.size, data.size // 1000)
        data[where] ^= 1
        result.append(replace(tensor, data=data.tobytes()))
    return result


def through_one_buffer(tensors: Iterable[ExportedTensor]) -> Iterator[ExportedTensor]:
    """As a trainer exports: each tensor is valid until the next is taken."""
    held = list(tensors)
    scratch = np.empty(max(len(bytes_of(tensor)) for tensor in held), np.uint8)
    for tensor in held:
        data = np.frombuffer(bytes_of(tensor), np.uint8)
        scratch[: data.size] = data
        yield replace(tensor, data=scratch[: data.size])
    scratch[:] = 0xAA


def bytes_of(tensor: ExportedTensor) -> bytes:
    """The bytes of a tensor."""
    return np.asarray(tensor.data).tobytes() if not isinstance(tensor.data, bytes) else tensor.data


def contents(tensors: Iterable[ExportedTensor]) -> Contents:
    """What a file with these tensors holds."""
    return {t.name: (t.dtype, t.shape, bytes_of(t)) for t in tensors}


def read(path: Path) -> Contents:
    """What a safetensors file holds."""
    return {
        name: (entry["dtype"], tuple(entry["shape"]), bytes(entry["data"]))
        for name, entry in deserialize(path.read_bytes())  # type: ignore[no-untyped-call]
    }


def read_elsewhere(path: Path, deadline_s: float = 30) -> str:
    """Lines of name, dtype, shape and sha256, as another process reads the file."""
    done = subprocess.run(
        [sys.executable, "-c", _READ, str(path)],
        capture_output=True,
        text=True,
        timeout=deadline_s,
        check=True,
    )
    return done.stdout


def difference(found: Contents, expected: Contents) -> str:
    """The first difference in words; empty if there is none."""
    for name, (dtype, shape, data) in expected.items():
        if name not in found:
            return f"tensor {name!r} is missing (found: {', '.join(sorted(found))[:300]})"
        if found[name][:2] != (dtype, shape):
            return f"tensor {name!r} became {found[name][0]} {list(found[name][1])}, was {dtype} {list(shape)}"
        if found[name][2] != data:
            return f"tensor {name!r} ({dtype} {list(shape)}) has other bytes than were published"
    extra = sorted(found.keys() - expected.keys())
    return f"tensors that were never published: {', '.join(extra)}" if extra else ""


def _tensor(
    generator: np.random.Generator, name: str, dtype: str, shape: tuple[int, ...]
) -> ExportedTensor:
    count = math.prod(shape)
    if dtype == "BOOL":
        data = generator.integers(0, 2, count, dtype=np.uint8).tobytes()
    else:
        data = generator.bytes(count * DTYPE_BYTES[dtype])
    if dtype in _ARRAYS:  # exporters hand out arrays of their framework as well as bytes
        return ExportedTensor(
            name, dtype, shape, np.frombuffer(data, _ARRAYS[dtype]).reshape(shape)
        )
    return ExportedTensor(name, dtype, shape, data)
