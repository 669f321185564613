"""Optimizer state in 8 bits as plain tensors, and back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

PARTS = ("codes", "scale", "qmap")
"""Of a moment in torchao's 8 bits: a code per number, a scale per block, and what the codes stand for."""


def plain(key: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The entry itself, or its :data:`PARTS` as ``KEY.PART``."""
    if is_traceable_wrapper_subclass(value):
        for part in PARTS:
            yield f"{key}.{part}", getattr(value, part).contiguous().clone()
    else:
        yield key, value


def whole(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The result of :func:`plain` for the state of one parameter."""
    split = {key.partition(".")[0] for key in state if "." in key}
    found = {key: value for key, value in state.items() if "." not in key}
    if split:
        from torchao.optim.subclass_8bit import OptimState8bit

        for key in split:
            codes, scale, qmap = (state[f"{key}.{part}"] for part in PARTS)
            signed = key == "exp_avg"
            found[key] = OptimState8bit(codes, scale, qmap, signed, torch.float32)
    return found
