"""How much memory a trainer took, and what to do when it did not suffice."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator

import torch

from astraflow_core.errors import RunFailed

_OTHER_WORDS = ("can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""Texts of the CPU allocator, and of libraries with their own allocator, whose errors have no class of their own."""


@contextlib.contextmanager
def enough_memory(budget: int, longest: int, ranks: int = 1) -> Iterator[None]:
    """Turn a device that is out of memory into a :class:`RunFailed` that says which ``micro_batch_tokens`` to try
    instead of ``budget``; ``longest`` is the longest row in tokens, of which each of ``ranks`` has a part."""
    smaller = budget // 2
    if smaller * ranks >= longest:
        advice = f"set micro_batch_tokens = {smaller} (it is {budget})"
    else:
        advice = (
            f"the longest row has {longest} tokens and goes alone below that: set gradient_checkpointing "
            "= true, use shorter rows, or shard the model over more ranks"
        )
    with _advised("out of memory", advice):
        yield


@contextlib.contextmanager
def enough_memory_for_state(what: str) -> Iterator[None]:
    """The same where nothing depends on the size of a micro-batch: ``what`` is being held all the time."""
    advice = (
        "this does not depend on micro_batch_tokens: shard the model over more ranks, train adapters (lora_rank), or "
        "use an optimizer with less state"
    )
    with _advised(f"out of memory for {what}", advice):
        yield


@contextlib.contextmanager
def _advised(what: str, advice: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and not any(
            words in str(error) for words in _OTHER_WORDS
        ):
            raise
        raise RunFailed(f"{what}: {advice}. {error}") from error


def peak_memory_gb(device: torch.device) -> float:
    """Most memory so far, in 10⁹ bytes: allocated on a CUDA device, else resident in the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
