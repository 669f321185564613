"""How much memory a trainer took, and what to do when it did not suffice."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator

import torch

from astraflow_core.errors import RunFailed


@contextlib.contextmanager
def enough_memory(budget: int, longest: int) -> Iterator[None]:
    """Turn a device that is out of memory into a :class:`RunFailed` that says which ``micro_batch_tokens`` to try
    instead of ``budget``; ``longest`` is the longest row in tokens."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        smaller = budget // 2
        if smaller >= longest:
            advice = f"set micro_batch_tokens = {smaller} (it is {budget})"
        else:
            advice = (
                f"the longest row has {longest} tokens and goes alone below that: set gradient_checkpointing "
                "= true, let rows be shorter, or share the model among ranks"
            )
        raise RunFailed(f"out of memory: {advice}. {error}") from error


def peak_memory_gb(device: torch.device) -> float:
    """Most memory so far, in 10⁹ bytes: allocated on a CUDA device, else resident in the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
