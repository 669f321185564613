"""Codes lists of numbers by :mod:`astraflow_plugin_delta.coding.huffman`, in NumPy alone."""

from __future__ import annotations

import numpy as np

from astraflow_plugin_delta.coding import huffman
from astraflow_plugin_delta.coding.codec import Array
from astraflow_plugin_delta.coding.frame import BadFrame

_AT_ONCE = 4096
"""Bytes whose bits are looked up at once."""


class NumpyHuffman:
    """See :class:`astraflow_plugin_delta.coding.codec.Kernel`."""

    def estimate(self, values: Array, signed: bool) -> int:
        counts = self.histogram(values, signed)
        raw = huffman.RAW_BITS[signed]
        some = counts[counts > 0]
        spread = (some * (huffman.LOG2[len(values)] - huffman.LOG2[some])).sum()
        return int(spread >> 16) + len(some) + int(counts[: len(raw)] @ raw)

    def histogram(self, values: Array, signed: bool) -> Array:
        return np.bincount(_symbols(values, signed), minlength=huffman.SYMBOLS)

    def code_lengths(self, counts: Array) -> Array:
        return huffman.code_lengths(counts)

    def pack_symbols(self, values: Array, signed: bool, lengths: Array) -> tuple[Array, Array]:
        symbols = _symbols(values, signed)
        codes = pack_bits(
            huffman.codes(lengths)[symbols].astype(np.int64), lengths[symbols].astype(np.int64)
        )
        rests = np.abs(values.astype(np.int64)) - huffman.FIRST[signed][symbols]
        return codes, pack_bits(rests, huffman.RAW_BITS[signed][symbols])

    def unpack_symbols(
        self, codes: Array, low: Array, count: int, signed: bool, lengths: Array
    ) -> Array:
        table = huffman.decoding_table(lengths, huffman.codes(lengths))
        symbols = _read(codes, count, table)
        widths = huffman.RAW_BITS[signed][symbols]
        if (int(widths.sum()) + 7) // 8 != len(low):
            raise BadFrame(f"{widths.sum()} raw bits in {len(low)} bytes")
        values: Array = huffman.FIRST[signed][symbols] + unpack_bits(low, widths)
        return np.where(symbols & 1, -values, values) if signed else values


def _symbols(values: Array, signed: bool) -> Array:
    numbers = np.abs(values.astype(np.int64))
    classes = np.searchsorted(huffman.FIRST[0], numbers, "right") - 1
    return 2 * classes + (values < 0) if signed else classes


def _read(stream: Array, count: int, table: Array) -> Array:
    """``count`` symbols. Where each code would end is looked up at every bit; from one that is known, twice
    as many are found by each doubling of the jumps."""
    padded = np.append(stream, np.zeros(2, np.uint8)).astype(np.uint32)
    found, left, at = [np.empty(0, np.uint16)], count, 0
    while left and at < 8 * len(stream):
        start = at >> 3
        part = padded[start : start + _AT_ONCE + 2]
        words = part[:-2] | part[1:-1] << 8 | part[2:] << 16
        windows = words[:, None] >> np.arange(8, dtype=np.uint32) & ((1 << huffman.LONGEST) - 1)
        entries = table[windows.ravel()]
        end = len(entries)
        jump = np.append(np.minimum(np.arange(end) + (entries >> 8), end), end)
        chain = np.array([at & 7])
        while chain[-1] < end and len(chain) < left:
            chain, jump = np.append(chain, jump[chain]), jump[jump]
        chain = chain[chain < end][:left]
        found.append(entries[chain])
        left -= len(chain)
        at = 8 * start + int(chain[-1]) + int(entries[chain[-1]] >> 8)
    if left or (at + 7) // 8 != len(stream):
        raise BadFrame(f"not {count} codes in {len(stream)} bytes")
    return np.concatenate(found) & 255


def pack_bits(values: Array, widths: Array) -> Array:
    """The lowest ``widths`` bits of each of ``values`` (int64), one after the other (u8)."""
    ends = np.cumsum(widths)
    bits = np.zeros(int(ends[-1]) if len(ends) else 0, np.uint8)
    for bit in range(int(widths.max(initial=0))):
        has = widths > bit
        bits[(ends - widths)[has] + bit] = (values[has] >> bit) & 1
    return np.packbits(bits, bitorder="little")


def unpack_bits(stream: Array, widths: Array) -> Array:
    """The values again (int64), from a stream that has them all."""
    ends = np.cumsum(widths)
    total = int(ends[-1]) if len(ends) else 0
    bits = np.unpackbits(stream, count=total, bitorder="little").astype(np.int64)
    values = np.zeros(len(widths), np.int64)
    for bit in range(int(widths.max(initial=0))):
        has = widths > bit
        values[has] |= bits[(ends - widths)[has] + bit] << bit
    return values
