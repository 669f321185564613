"""A stand-in, for tests, for the CUDA calls that Megatron-Core makes wherever it runs.

Megatron-Core asks for the current CUDA device, allocates on ``"cuda"`` by name, keeps the states of the CUDA
generator and compares types by their CUDA names. Within :func:`standing_in` all of that means the CPU; no
source of Megatron-Core is changed and nothing remains changed after the block. What it cannot show: NCCL, streams,
fused kernels, and a tensor of ours on the wrong device, which it would hide.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
from megatron.core.tensor_parallel import random as megatron_random
from megatron.core.transformer.moe import token_dispatcher
from torch.overrides import TorchFunctionMode

from astraflow_core.errors import UserError

CPU = torch.device("cpu")


class _CudaIsCpu(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.cuda:
            return args[0]
        if not kwargs:
            found = func(*args)
            named = func is torch.Tensor.type and len(args) == 1
            return found.replace("torch.", "torch.cuda.") if named else found
        device = kwargs.get("device")
        if isinstance(device, str | torch.device) and torch.device(device).type == "cuda":
            kwargs = {**kwargs, "device": CPU}
        return func(*args, **kwargs)


class _Stream:
    """Everything on a CPU has already happened."""

    def wait_stream(self, other: object) -> None:
        """Nothing to wait for."""

    def wait_event(self, event: object) -> None:
        """Nothing to wait for."""

    def record_event(self) -> _Stream:
        """Which has happened, too."""
        return self

    def synchronize(self) -> None:
        """Nothing to wait for."""


def check() -> None:
    """Raises :class:`UserError` where there is a CUDA device: nothing there should pass for one."""
    if torch.cuda.is_available():
        raise UserError(
            "trainer 'megatron' with device = 'cpu' is for tests on machines without CUDA; this one has "
            f"{torch.cuda.get_device_name()}: remove the key"
        )


@contextlib.contextmanager
def standing_in() -> Iterator[None]:
    """The block in which Megatron-Core runs on the CPU."""

    def get(*_: Any, **__: Any) -> torch.Tensor:
        return torch.get_rng_state()

    def put(state: torch.Tensor, *_: Any, **__: Any) -> None:
        torch.set_rng_state(state)

    def nothing(*_: Any, **__: Any) -> None:
        return None

    def moved(numbers: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        return numbers.numpy() if as_numpy and isinstance(numbers, torch.Tensor) else numbers

    replaced: dict[str, Any] = {
        "current_device": lambda: CPU,
        "get_rng_state": get,
        "set_rng_state": put,
        "manual_seed": torch.manual_seed,
        "synchronize": nothing,
        "current_stream": lambda *_: _Stream(),
        "default_stream": lambda *_: _Stream(),
        "Stream": _Stream,
    }
    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.multiple(torch.cuda, **replaced))
        stack.enter_context(
            patch.multiple(megatron_random, _get_cuda_rng_state=get, _set_cuda_rng_state=put)
        )
        stack.enter_context(patch.object(token_dispatcher, "maybe_move_tensor_to_cpu", moved))
        stack.enter_context(_CudaIsCpu())
        yield
