"""The device on which an engine based on PyTorch runs."""

from __future__ import annotations

import torch

from astraflow_core.errors import UserError


def engine_device(engine: str, name: str) -> torch.device:
    """The device called ``name`` in the keys of ``engine``: ``'auto'`` is CUDA where it is available, else the CPU.

    Raises :class:`UserError` for a CUDA device on a machine without CUDA.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"engine {engine!r}: device {name!r} is not present; use 'cpu' or 'auto'")
    return torch.device(name)
