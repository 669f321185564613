"""Replacing the weights of a model in place by those of a safetensors file, or by tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from astraflow_core.errors import WeightsError
from astraflow_torch_weights.stacked_experts import as_checkpoint

_CASTABLE = frozenset({"F32", "BF16", "F16"})
_SHOWN = 5
Entry = tuple[tuple[int, ...], str]
"""Shape and dtype."""


def load_weights(model: Any, path: Path) -> None:
    """Copy every tensor of ``path`` over the parameter or buffer of that name, cast to its dtype.

    Of tensors that the model ties, one name is enough. Names, shapes and dtypes are all checked before
    the first byte changes; raises :class:`WeightsError` with what does not fit.
    """
    try:
        with safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            entries = {n: (tuple(s.get_shape()), s.get_dtype()) for n, s in slices.items()}
            _replace(model, str(path), entries, file.get_tensor)
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"cannot read {path} as safetensors: {error}") from error


def load_tensors(model: Any, what: str, tensors: Mapping[str, torch.Tensor]) -> None:
    """As :func:`load_weights`, of tensors that are in memory; ``what`` names them in errors."""
    dtypes = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
    entries = {
        name: (tuple(tensor.shape), dtypes.get(tensor.dtype, str(tensor.dtype)))
        for name, tensor in tensors.items()
    }
    _replace(model, what, entries, tensors.__getitem__)


def _replace(
    model: Any, what: str, entries: Mapping[str, Entry], get: Callable[[str], torch.Tensor]
) -> None:
    targets = as_checkpoint(model)
    problems = _problems(targets, entries)
    if problems:
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        shown = "; ".join(problems[:_SHOWN])
        raise WeightsError(f"{what} does not fit the loaded model: {shown}{more}")
    with torch.no_grad():
        for name in entries:
            targets[name].copy_(get(name))


def _problems(targets: Mapping[str, torch.Tensor], entries: Mapping[str, Entry]) -> list[str]:
    names = entries.keys()
    found = [f"unknown tensor {name!r}" for name in sorted(names - targets.keys())]
    covered = {targets[name].data_ptr() for name in names & targets.keys()}
    for name, tensor in targets.items():
        if name not in names:
            if tensor.data_ptr() not in covered:
                found.append(f"missing tensor {name!r}")
            continue
        shape, dtype = entries[name]
        if shape != tuple(tensor.shape):
            found.append(f"{name!r} has shape {shape}, expected {tuple(tensor.shape)}")
        if tensor.is_floating_point() and dtype not in _CASTABLE:
            found.append(f"{name!r} is {dtype}, expected one of {', '.join(sorted(_CASTABLE))}")
    return found
