"""For tests, CUDA on a machine without it: tensors stay in host memory, and what is asked of the device is noted.

It shows that a branch for CUDA does what it is to do, in which order, on any machine. Whether a GPU agrees, only the tests marked
``gpu`` show.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Self
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")
MEMORY_BYTES = 3_000_000_000
"""What :func:`torch.cuda.max_memory_allocated` says."""


class FakeCuda:
    """In its block torch finds ``devices`` CUDA devices. ``asked``: name and device of each call of ``torch.cuda`` that a caller waits
    for or that changes the device's state, in order; a test may add what it sees itself. ``generator``: the state of the device's
    generator of random numbers. A name in ``fails`` raises that error instead."""

    def __init__(self, devices: int = 1) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.generator = torch.arange(16, dtype=torch.uint8)
        self.fails: dict[str, Exception] = {}
        self._devices = devices
        self._entered = ExitStack()

    def __enter__(self) -> Self:
        noted = ("synchronize", "set_device", "empty_cache", "ipc_collect")
        replaced: dict[str, Any] = {name: self._noting(name) for name in noted}
        replaced |= {
            "is_available": lambda: self._devices > 0,
            "device_count": lambda: self._devices,
            "current_device": lambda: 0,
            "current_stream": lambda device=None: f"stream of {device}",
            "get_device_name": lambda device=None: "FakeCuda",
            "max_memory_allocated": lambda device=None: MEMORY_BYTES,
            "get_rng_state": lambda device="cuda": self.generator.clone(),
            "set_rng_state": self._set_generator,
        }
        self._entered.enter_context(patch.multiple(torch.cuda, **replaced))
        self._entered.enter_context(_OnCpu())
        return self

    def __exit__(self, *error: object) -> None:
        self._entered.close()

    def _noting(self, name: str) -> Callable[..., None]:
        def call(*device: Any) -> None:
            if name in self.fails:
                raise self.fails[name]
            self.asked.append((name, *map(str, device)))

        return call

    def _set_generator(self, state: torch.Tensor, device: Any = "cuda") -> None:
        self.generator = state.clone()


class _OnCpu(TorchFunctionMode):
    """What is to be made on a CUDA device, or moved there, is made on the CPU, or copied as moving would."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.device:
            return func(*args, **(kwargs or {}))
        if func is torch.Tensor.cuda:
            return args[0].clone()
        given, named = tuple(map(_here, args)), {k: _here(v) for k, v in (kwargs or {}).items()}
        moved = func is torch.Tensor.to and (given, named) != (args, kwargs or {})
        found = func(*given, **named)
        return found.clone() if moved else found


def _here(value: Any) -> Any:
    if isinstance(value, torch.device):
        return CPU if value.type == "cuda" else value
    return "cpu" if isinstance(value, str) and value.partition(":")[0] == "cuda" else value
