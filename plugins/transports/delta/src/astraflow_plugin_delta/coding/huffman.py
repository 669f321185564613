"""Canonical Huffman codes of classes of numbers, with raw bits for the place in a class.

As DEFLATE codes distances (RFC 1951): numbers below 64 are classes of their own, each octave above has two.
:func:`code_lengths`, :func:`codes` and :func:`decoding_table` are plain loops over arrays, so that the
compiled kernel compiles the very functions that the other one runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from astraflow_plugin_delta.coding.frame import BadFrame

Array = NDArray[Any]
EXACT = 6
"""Numbers below 2^EXACT are classes of their own."""
SINGLES = (1 << EXACT) - 1
SYMBOLS = 256
"""Length of every table by symbol: ``class``, or with a sign ``2 * class + negative``."""
LONGEST = 12
"""Bits of the longest code."""
SAMPLE = 512
"""Most numbers that an estimate may look at."""
_OCTAVES = 32
_WHOLE = 1 << LONGEST
_SHARES = np.array([0, *(_WHOLE >> length for length in range(1, LONGEST + 1)), *[2 * _WHOLE] * 3])
"""By length of a code: how many of the next bits it answers for; of one that is too long, more than there are."""

_CLASSES = [(number, 0) for number in range(1, SINGLES + 1)] + [
    ((2 + half) << (octave - 1), octave - 1) for octave in range(EXACT, _OCTAVES) for half in (0, 1)
]
FIRST, RAW_BITS = (
    tuple(
        np.array([each[part] for each in _CLASSES for _ in range(1 + signed)], np.int64)
        for signed in (0, 1)
    )
    for part in (0, 1)
)
"""By sign or none, then by symbol: the first number of a class, and how many raw bits say which of it."""
LOG2 = np.round(65536 * np.log2(np.maximum(np.arange(SAMPLE + 1), 1))).astype(np.int64)
"""Logarithms in units of 2^-16, so that every kernel estimates the same."""


def code_lengths(counts: Array) -> Array:
    """Lengths (u8) of a Huffman code for symbols that occur so often (int64), 0 for those that do not; at
    least two occur. Counts are halved until no code is longer than :data:`LONGEST`."""
    symbols = np.nonzero(counts)[0]
    ranked = np.sort(counts[symbols] * SYMBOLS + symbols)
    leaves, ends = len(ranked), 2 * len(ranked) - 1
    weights, above = np.zeros(ends, np.int64), np.zeros(ends, np.int64)
    depths = np.zeros(ends, np.int64)
    light = ranked // SYMBOLS
    while True:
        weights[:leaves] = light
        leaf, inner = 0, leaves
        for node in range(leaves, ends):
            weights[node] = 0
            for _ in range(2):
                if inner == node or (leaf < leaves and weights[leaf] <= weights[inner]):
                    taken, leaf = leaf, leaf + 1
                else:
                    taken, inner = inner, inner + 1
                weights[node] += weights[taken]
                above[taken] = node
        for node in range(ends - 2, -1, -1):
            depths[node] = depths[above[node]] + 1
        if depths[:leaves].max() <= LONGEST:
            break
        light = (light + 1) // 2
    lengths = np.zeros(len(counts), np.uint8)
    for index in range(leaves):
        lengths[ranked[index] % SYMBOLS] = depths[index]
    return lengths


def codes(lengths: Array) -> Array:
    """The canonical code (u16) of every symbol, its first bit lowest."""
    found = np.zeros(len(lengths), np.uint16)
    code = 0
    for length in range(1, LONGEST + 1):
        code <<= 1
        for symbol in range(len(lengths)):
            if lengths[symbol] == length:
                turned = 0
                for bit in range(length):
                    turned |= (code >> bit & 1) << (length - 1 - bit)
                found[symbol] = turned
                code += 1
    return found


def decoding_table(lengths: Array, found: Array) -> Array:
    """By the next :data:`LONGEST` bits of a stream: the symbol and 256 times the length of its code (u16).
    ``found`` are the :func:`codes` of ``lengths``, which are :func:`complete`."""
    table = np.zeros(1 << LONGEST, np.uint16)
    for symbol in range(len(lengths)):
        length = int(lengths[symbol])
        if length:
            table[int(found[symbol]) :: 1 << length] = symbol + (length << 8)
    return table


def complete(lengths: Array) -> bool:
    """Whether every sequence of bits is one of codes of these lengths (u8 below 16): Kraft's sum is 1."""
    return bool(_SHARES[lengths].sum() == _WHOLE)


def entries(lengths: Array) -> int:
    """Lengths that have to be sent: those up to the last that is not zero."""
    return int(np.flatnonzero(lengths)[-1]) + 1


def pack_lengths(lengths: Array) -> Array:
    """Half a byte for each of the :func:`entries`, the lower half first (u8)."""
    sent = lengths[: entries(lengths)]
    sent = np.append(sent, np.zeros(len(sent) % 2, np.uint8))
    packed: Array = sent[::2] | sent[1::2] << 4
    return packed


def unpack_lengths(table: Array, count: int, signed: bool) -> Array:
    """``count`` lengths from :func:`pack_lengths`; raises :class:`BadFrame` if they make no complete code."""
    lengths = np.zeros(SYMBOLS, np.uint8)
    lengths[: 2 * len(table) : 2] = table & 15
    lengths[1 : 2 * len(table) : 2] = table >> 4
    lengths[count:] = 0
    if count > len(RAW_BITS[signed]) or not complete(lengths):
        raise BadFrame(f"its table of {count} lengths is not a complete code")
    return lengths


def bits(counts: Array, lengths: Array, signed: bool) -> tuple[int, int]:
    """How long the codes and the raw bits of symbols that occur so often are."""
    raw = RAW_BITS[signed]
    return int(counts @ lengths), int(counts[: len(raw)] @ raw)
