"""Codes lists of numbers by :mod:`astraflow_plugin_delta.coding.huffman`, in loops compiled by Numba."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from astraflow_plugin_delta.coding import huffman, streams
from astraflow_plugin_delta.coding.codec import Array
from astraflow_plugin_delta.coding.frame import BadFrame

_compiled = numba.njit(nogil=True, cache=True)
_code_lengths = _compiled(huffman.code_lengths)
_codes = _compiled(huffman.codes)
_decoding_table = _compiled(huffman.decoding_table)
_EXACT, _SINGLES, _LONGEST = huffman.EXACT, huffman.SINGLES, huffman.LONGEST
_MASK = np.uint64((1 << huffman.LONGEST) - 1)
_WIDEST = int(huffman.RAW_BITS[0].max())


@intrinsic  # type: ignore[untyped-decorator]
def leading_zeros(typing: Any, value: Any) -> Any:
    """Of 64 bits that are not all zero."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), generate


@_compiled
def _class_of(number):  # type: ignore[no-untyped-def]
    if number <= _SINGLES:
        return number - 1
    octave = np.int64(63) - np.int64(leading_zeros(np.uint64(number)))
    return _SINGLES + 2 * (octave - _EXACT) + (number >> (octave - 1) & 1)


@_compiled
def _histogram(values, signed, counts):  # type: ignore[no-untyped-def]
    for index in range(values.size):
        value = np.int64(values[index])
        negative = value >> 63
        symbol = _class_of((value ^ negative) - negative)
        counts[symbol << signed | (negative & signed)] += 1


@_compiled
def _estimate(values, signed, raw_bits, log2):  # type: ignore[no-untyped-def]
    counts = np.zeros(raw_bits.size, np.int64)
    _histogram(values, signed, counts)
    spread, raw = np.int64(0), np.int64(0)
    for symbol in range(counts.size):
        count = counts[symbol]
        spread += count * (log2[values.size] - log2[count])
        raw += count * raw_bits[symbol] + (count > 0)
    return (spread >> 16) + raw


@_compiled
def _pack(values, signed, lengths, first, raw_bits, stream, low):  # type: ignore[no-untyped-def]
    """The streams as words of 64 bits; how many bits each has."""
    codes = _codes(lengths)
    held, bits, place = np.uint64(0), np.int64(0), 0
    held_low, bits_low, place_low = np.uint64(0), np.int64(0), 0
    for index in range(values.size):
        value = np.int64(values[index])
        negative = value >> 63
        number = (value ^ negative) - negative
        symbol = _class_of(number) << signed | (negative & signed)
        code, length = np.uint64(codes[symbol]), np.int64(lengths[symbol])
        held |= code << np.uint64(bits)
        bits += length
        if bits >= 64:
            bits -= 64
            stream[place] = held
            place += 1
            held = code >> np.uint64(length - bits)
        width, rest = raw_bits[symbol], np.uint64(number - first[symbol])
        held_low |= rest << np.uint64(bits_low)
        bits_low += width
        if bits_low >= 64:
            bits_low -= 64
            low[place_low] = held_low
            place_low += 1
            held_low = rest >> np.uint64(width - bits_low)
    stream[place] = held
    low[place_low] = held_low
    return 64 * place + bits, 64 * place_low + bits_low


@_compiled
def _next(words, at):  # type: ignore[no-untyped-def]
    """The bits from ``at`` on. Shifting by 64 is undefined, so the upper word is shifted twice."""
    shift = np.uint64(at & 63)
    return words[at >> 6] >> shift | (words[(at >> 6) + 1] << np.uint64(1)) << (
        np.uint64(63) - shift
    )


@_compiled
def _unpack(stream, end, low, end_low, signed, lengths, first, raw_bits, values):  # type: ignore[no-untyped-def]
    """From words of 64 bits, one more than the ``end`` bits need; the bits read of both streams, or -1 if they
    end before."""
    table = _decoding_table(lengths, _codes(lengths))
    at, at_low = np.int64(0), np.int64(0)
    for index in range(values.size):
        entry = np.int64(table[_next(stream, at) & _MASK])
        at += entry >> 8
        symbol = entry & 255
        width = raw_bits[symbol]
        if at > end or at_low + width > end_low:
            return np.int64(-1), at_low
        mask = (np.uint64(1) << np.uint64(width)) - np.uint64(1)
        number = first[symbol] + np.int64(_next(low, at_low) & mask)
        at_low += width
        negative = -(signed & symbol & 1)
        values[index] = (number ^ negative) - negative
    return at, at_low


class NumbaHuffman:
    """See :class:`astraflow_plugin_delta.coding.codec.Kernel`."""

    def estimate(self, values: Array, signed: bool) -> int:
        return int(_estimate(values, int(signed), huffman.RAW_BITS[signed], huffman.LOG2))

    def histogram(self, values: Array, signed: bool) -> Array:
        counts = np.zeros(huffman.SYMBOLS, np.int64)
        _histogram(values, int(signed), counts)
        return counts

    def code_lengths(self, counts: Array) -> Array:
        lengths: Array = _code_lengths(counts)
        return lengths

    def pack_symbols(self, values: Array, signed: bool, lengths: Array) -> tuple[Array, Array]:
        stream = np.empty(len(values) * _LONGEST // 64 + 1, np.uint64)
        low = np.empty(len(values) * _WIDEST // 64 + 1, np.uint64)
        first, raw = huffman.FIRST[signed], huffman.RAW_BITS[signed]
        bits, bits_low = _pack(values, int(signed), lengths, first, raw, stream, low)
        return streams.to_bytes(stream, bits), streams.to_bytes(low, bits_low)

    def unpack_symbols(
        self, codes: Array, low: Array, count: int, signed: bool, lengths: Array
    ) -> Array:
        values = np.empty(count, np.int64)
        at, at_low = _unpack(
            streams.to_words(codes), 8 * len(codes), streams.to_words(low), 8 * len(low),
            int(signed), lengths, huffman.FIRST[signed], huffman.RAW_BITS[signed], values,
        )  # fmt: skip
        if (at + 7) // 8 != len(codes) or (at_low + 7) // 8 != len(low):
            raise BadFrame(f"not {count} numbers in {len(codes)} and {len(low)} bytes")
        return values
