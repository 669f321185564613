"""A stream of bits as words of 64 and back, the lowest bit of the first byte first."""

from __future__ import annotations

import numpy as np

from astraflow_plugin_delta.coding.codec import Array


def to_bytes(words: Array, bits: int) -> Array:
    """The first ``bits`` of a stream in words of 64 (u64), as little-endian bytes (u8)."""
    return words.astype("<u8", copy=False).view(np.uint8)[: (bits + 7) // 8]


def to_words(stream: Array) -> Array:
    """A stream of bytes (u8) as words of 64 bits (u64), with one more that is zero."""
    words = np.zeros(len(stream) // 8 + 2, "<u8")
    words.view(np.uint8)[: len(stream)] = stream
    return words.astype(np.uint64, copy=False)
