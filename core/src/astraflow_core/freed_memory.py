"""Memory that was freed stays with the process."""

from __future__ import annotations

import ctypes
import os

LARGEST_KEPT = 32 << 20
"""From this size on a block goes back to the system when it is freed (bytes)."""
MOST_KEPT = 512 << 20
"""Freed memory at the end of an arena beyond this goes back as well (bytes)."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt(3)
_OWN_CHOICE = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_")


def keep_freed_memory() -> None:
    """Let glibc keep what this process frees, for its next allocations; elsewhere nothing changes.

    A service allocates and frees the same few megabytes again and again: activations of every micro-batch, the
    body of every batch. By default they go back to the system each time and are faulted in again page by page, a
    tenth of the CPU time of a small model's step. Whoever has set glibc's own variables keeps what they say.
    """
    if any(name in os.environ for name in _OWN_CHOICE) or "glibc.malloc" in os.environ.get(
        "GLIBC_TUNABLES", ""
    ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, LARGEST_KEPT)
        mallopt(_TRIM_THRESHOLD, MOST_KEPT)
