"""Memory settings of a process: the garbage collector during startup, and freed memory."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def freeze_gc_after_startup() -> Iterator[None]:
    """Exclude objects created within from garbage collection, now and later. The modules of a deep
    learning framework are a million objects. Collecting while they are created takes a fifth of the
    CPU time of the start; each full collection later would take 0.3 s.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


LARGEST_KEPT = 32 << 20
"""Blocks of at least this size are returned to the system when freed (bytes)."""
MOST_KEPT = 512 << 20
"""Freed memory at the end of an arena beyond this is returned as well (bytes)."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt(3)
_OWN_CHOICE = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_")


def retain_freed_memory() -> None:
    """Let glibc keep what this process frees, for its next allocations; elsewhere nothing changes.

    A service allocates and frees the same few megabytes again and again: activations of every micro-batch, the
    body of every batch. By default they are returned to the system each time and faulted in again
    page by page, a tenth of the CPU time of a small model's step. Environment variables of glibc
    take precedence.
    """
    if any(name in os.environ for name in _OWN_CHOICE) or "glibc.malloc" in os.environ.get(
        "GLIBC_TUNABLES", ""
    ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, LARGEST_KEPT)
        mallopt(_TRIM_THRESHOLD, MOST_KEPT)
