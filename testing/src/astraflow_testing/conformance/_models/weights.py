"""Safetensors files as raw bytes and as float64, whatever their dtypes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from astraflow_core.types import ExportedTensor
from astraflow_wire.model_files.tensor_file import lay_out, read_specs

_NUMPY = {"F64": np.float64, "F32": np.float32, "F16": np.float16}


def read_tensors(file: Path) -> dict[str, ExportedTensor]:
    """Name → tensor, its data being bytes."""
    content = file.read_bytes()
    return {
        spec.name: ExportedTensor(spec.name, spec.dtype, spec.shape, content[spec.start : spec.end])
        for spec in read_specs(memoryview(content))
    }


def write_tensors(file: Path, tensors: dict[str, ExportedTensor]) -> Path:
    """Write ``tensors`` as a safetensors file; returns ``file``."""
    header, specs = lay_out((name, t.dtype, t.shape) for name, t in tensors.items())
    file.write_bytes(header + b"".join(bytes(tensors[spec.name].data) for spec in specs))
    return file


def as_floats(tensor: ExportedTensor) -> npt.NDArray[np.float64]:
    """The values of a floating-point tensor."""
    data = bytes(tensor.data)
    if tensor.dtype == "BF16":
        bits = np.frombuffer(data, np.uint16).astype(np.uint32) << 16
        return bits.view(np.float32).astype(np.float64).reshape(tensor.shape)
    return np.frombuffer(data, _NUMPY[tensor.dtype]).astype(np.float64).reshape(tensor.shape)


def read_floats(file: Path) -> dict[str, npt.NDArray[np.float64]]:
    """Name → values of a file of floating-point tensors."""
    return {name: as_floats(tensor) for name, tensor in read_tensors(file).items()}
