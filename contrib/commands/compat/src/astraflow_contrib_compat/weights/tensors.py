"""Tensors of a model's folder, and of a buffer of the public protocol, on their way to our transport."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from astraflow_contrib_compat.weights.flat import TORCH
from astraflow_contrib_compat.weights.receiver import Layout
from astraflow_core.errors import PreflightError
from astraflow_core.types import ExportedTensor
from astraflow_core.types.weights import DTYPE_BYTES
from astraflow_wire.model_files.tensor_file import read_specs

NAMES = {torch: name for name, torch in TORCH.items()}


def expected_tensors(model: Path) -> tuple[dict[str, tuple[tuple[int, ...], str]], int]:
    """Name → shape and type of the tensors in a model's folder, and their bytes."""
    found, length = {}, 0
    for tensor in folder_tensors(model):
        found[tensor.name] = tensor.shape, TORCH[tensor.dtype]
        length += len(tensor.data)
    return found, length


def folder_tensors(model: Path) -> Iterator[ExportedTensor]:
    """The tensors of a model's folder."""
    files = sorted(model.glob("*.safetensors"))
    if not files:
        raise PreflightError(f"{model} has no *.safetensors file: there would be no version 0")
    for path in files:
        mapped = np.memmap(path, np.uint8, "r")
        for spec in read_specs(mapped.data):
            yield ExportedTensor(spec.name, spec.dtype, spec.shape, mapped[spec.start : spec.end])


def buffer_tensors(layout: Layout, buffer: bytearray) -> Iterator[ExportedTensor]:
    """The tensors in a buffer of the public protocol."""
    view, start = memoryview(buffer), 0
    for name, shape, kind in layout:
        dtype = NAMES[kind]
        size = int(np.prod(shape, dtype=np.int64)) * DTYPE_BYTES[dtype]
        yield ExportedTensor(name, dtype, shape, view[start : start + size])
        start += size
