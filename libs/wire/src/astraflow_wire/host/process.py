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


FULL_COLLECTION_S = 60.0
"""How often a process whose full collections are :func:`periodic <make_full_collections_periodic>` calls ``gc.collect()``."""


def make_full_collections_periodic() -> None:
    """Let no allocation start a full collection of garbage: the process calls ``gc.collect()`` itself.

    A full collection visits every object, and one starts whenever a quarter as many are new. A service whose objects live
    as long as a batch, sixty for each of a thousand groups, would collect for every batch, find nothing, and spend a
    seventh of its CPU time on it. Collections of young objects are so rare that a thousand requests at a time, which are
    freed without them, end meanwhile. What exists now, mostly modules, is excluded from all of them.
    """
    gc.freeze()
    gc.set_threshold(_YOUNG, 10, _NEVER)


_YOUNG = 50_000
_NEVER = (1 << 31) - 1

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
