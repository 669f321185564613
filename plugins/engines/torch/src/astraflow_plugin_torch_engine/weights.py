"""Replacing the weights of a model in place by those of a safetensors file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from astraflow_core.errors import WeightsError

_CASTABLE = frozenset({"F32", "BF16", "F16"})
_SHOWN = 5


def load_weights(model: Any, path: Path) -> None:
    """Copy every tensor of ``path`` over the parameter or buffer of that name, cast to its dtype.

    Of tensors that the model ties, one name is enough. Names, shapes and dtypes are all checked before
    the first byte changes; raises :class:`WeightsError` with what does not fit.
    """
    targets: Mapping[str, torch.Tensor] = model.state_dict(keep_vars=True)
    try:
        with safe_open(path, framework="pt") as file, torch.no_grad():
            problems = _problems(targets, file)
            if problems:
                more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
                shown = "; ".join(problems[:_SHOWN])
                raise WeightsError(f"{path} does not fit the loaded model: {shown}{more}")
            for name in file.keys():  # noqa: SIM118 (not a mapping)
                targets[name].copy_(file.get_tensor(name))
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"cannot read {path} as safetensors: {error}") from error


def _problems(targets: Mapping[str, torch.Tensor], file: Any) -> list[str]:
    names = set(file.keys())
    found = [f"unknown tensor {name!r}" for name in sorted(names - targets.keys())]
    covered = {targets[name].data_ptr() for name in names & targets.keys()}
    for name, tensor in targets.items():
        if name not in names:
            if tensor.data_ptr() not in covered:
                found.append(f"missing tensor {name!r}")
            continue
        entry = file.get_slice(name)
        shape, dtype = tuple(entry.get_shape()), entry.get_dtype()
        if shape != tuple(tensor.shape):
            found.append(f"{name!r} has shape {shape}, expected {tuple(tensor.shape)}")
        if tensor.is_floating_point() and dtype not in _CASTABLE:
            found.append(f"{name!r} is {dtype}, expected one of {', '.join(sorted(_CASTABLE))}")
    return found
