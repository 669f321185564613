"""Adapters as versions: their base model, the engines that accept them, and the merged weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from astraflow_core.catalog import Catalog
from astraflow_core.component import Kind
from astraflow_core.errors import PluginError, UserError, WeightsError
from astraflow_core.types import TensorSpec
from astraflow_wire.model_files.model_digest import digest_of_model
from astraflow_wire.model_files.tensor_file import lay_out, mapped, specs_of

_PREFIX = "base_model.model."
Array = npt.NDArray[np.float32]


def base_digest(model: Path) -> str:
    """The digest of the Hugging Face folder ``model``, which the manifests of its adapters carry."""
    return digest_of_model(_weights_of(model))


def adapter_problem(catalog: Catalog, transport: str, engine: str) -> str:
    """Why adapters cannot be sent between these components; empty if they can, or if ``engine`` is
    installed only in its own environment and checks this itself.
    """
    if "adapter" not in catalog.flags(Kind.TRANSPORT, transport):
        return f"transport {transport!r} lacks the capability adapter"
    try:
        flags = catalog.flags(Kind.ENGINE, engine)
    except PluginError:
        return ""
    return "" if "lora" in flags else f"engine {engine!r} lacks the capability lora"


def merge(model: Path, adapter: Path, target: Path) -> None:
    """Write ``W + B A`` for each tensor of ``model`` that ``adapter`` changes, and the others as they are, as one
    safetensors file. Computed in float32, rounded to the dtype of ``W`` (Hu et al. 2021, arXiv:2106.09685; the
    scale is in ``B``). One tensor is in memory at a time."""
    sources = {spec.name: (file, spec) for file in _weights_of(model) for spec in specs_of(file)}
    changes = {spec.name: (adapter, spec) for spec in specs_of(adapter)}
    header, order = lay_out((s.name, s.dtype, s.shape) for _, s in sources.values())
    with target.open("wb") as out:
        out.write(header)
        for wanted in order:
            module = _PREFIX + wanted.name.removesuffix(".weight")
            a, b = f"{module}.lora_A.weight", f"{module}.lora_B.weight"
            with _bytes(*sources[wanted.name]) as data:
                if a not in changes:
                    out.write(data)
                    continue
                weight = _floats(data, wanted)
            changed = weight + _read(*changes.pop(b)) @ _read(*changes.pop(a))
            out.write(_as_dtype(changed, wanted.dtype))
    if changes:
        raise WeightsError(f"{adapter} changes tensors that {model} lacks: {sorted(changes)[:5]}")


def _weights_of(model: Path) -> list[Path]:
    files = sorted(model.glob("*.safetensors"))
    if not files:
        raise UserError(
            f"{model} has no *.safetensors; an adapter needs a base model in that format"
        )
    return files


@contextmanager
def _bytes(file: Path, spec: TensorSpec) -> Iterator[memoryview]:
    with mapped(file) as view, view[spec.start : spec.end] as data:
        yield data


def _read(file: Path, spec: TensorSpec) -> Array:
    with _bytes(file, spec) as data:
        return _floats(data, spec)


def _floats(data: memoryview, spec: TensorSpec) -> Array:
    """A copy in float32."""
    if spec.dtype == "BF16":
        high = np.frombuffer(bytes(data), "<u2").astype(np.uint32) << 16
        return high.view(np.float32).reshape(spec.shape)
    if spec.dtype not in ("F32", "F16"):
        raise WeightsError(f"{spec.name!r} is {spec.dtype}; an adapter changes F32, F16 and BF16")
    kind = "<f4" if spec.dtype == "F32" else "<f2"
    return np.frombuffer(bytes(data), kind).astype(np.float32).reshape(spec.shape)


def _as_dtype(values: Array, dtype: str) -> bytes:
    if dtype != "BF16":
        return values.astype("<f4" if dtype == "F32" else "<f2").tobytes()
    bits = np.ascontiguousarray(values).view(np.uint32)
    nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16  # ties to even; weights are finite
    return nearest.astype("<u2").tobytes()
