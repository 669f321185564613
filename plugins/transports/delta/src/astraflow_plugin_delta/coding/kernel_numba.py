"""The loops compiled by Numba: a comparison of 64 lanes gives a mask whose set bits are walked."""

from __future__ import annotations

import threading
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from astraflow_plugin_delta.coding import streams
from astraflow_plugin_delta.coding.codec import Array
from astraflow_plugin_delta.coding.frame import BadFrame
from astraflow_plugin_delta.coding.huffman_numba import NumbaHuffman, leading_zeros

_LANES = 64
_MAX_BITS = 32
_EAGER = 3
"""Positions written for each 64 elements before their number is looked at (after simdjson, Langdale and
Lemire 2019)."""
_PIECE = 1024
"""Elements after which steps are taken: they are in the nearest cache then. The comparison itself is left to the
processor's own prefetching, which is faster than being told."""
_AHEAD = 2048
"""Elements between the one that is changed and the one whose cache line is asked for."""


@intrinsic  # type: ignore[untyped-decorator]
def _differ(typing: Any, old: Any, new: Any, index: Any) -> Any:
    """Mask of the lanes that differ among the 64 elements from ``index`` on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        width = signature.args[0].dtype.bitwidth
        vector = ir.VectorType(ir.IntType(width), _LANES)

        def load(kind: Any, array: Any) -> Any:
            data = make_array(kind)(context, builder, array).data
            pointer = builder.bitcast(builder.gep(data, [arguments[2]]), vector.as_pointer())
            loaded = builder.load(pointer)
            loaded.align = width // 8
            return loaded

        first = load(signature.args[0], arguments[0])
        second = load(signature.args[1], arguments[1])
        return builder.bitcast(builder.icmp_unsigned("!=", first, second), ir.IntType(_LANES))

    return types.uint64(old, new, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def _trailing_zeros(typing: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), generate


@intrinsic  # type: ignore[untyped-decorator]
def _ones(typing: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), generate


@intrinsic  # type: ignore[untyped-decorator]
def _prefetch(typing: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line of an element, which will be written."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = make_array(signature.args[0])(context, builder, arguments[0]).data
        pointer = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        integer = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, integer, integer, integer])
        function = builder.module.declare_intrinsic("llvm.prefetch", (pointer.type,), kind)
        builder.call(function, [pointer, *(ir.Constant(integer, value) for value in (1, 3, 1))])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


_compiled = numba.njit(nogil=True, cache=True)


@_compiled
def _diff(old, new, positions, steps):  # type: ignore[no-untyped-def]
    """``positions`` has room for :data:`_EAGER` more than there are elements."""
    count, found, index, stepped = old.size, np.int64(0), 0, np.int64(0)
    shift = 64 - 8 * old.itemsize
    while index < count:
        pause = min(index + _PIECE, count)
        while index < pause:
            if index + _LANES <= count:
                mask = _differ(old, new, index)
            else:
                mask = np.uint64(0)
                for lane in range(count - index):
                    if old[index + lane] != new[index + lane]:
                        mask |= np.uint64(1) << np.uint64(lane)
            after = found + np.int64(_ones(mask))
            for _ in range(_EAGER):  # some too many cost less than a branch that is guessed wrongly
                positions[found] = index + np.int64(_trailing_zeros(mask))
                mask &= mask - np.uint64(1)
                found += 1
            while found < after:
                positions[found] = index + np.int64(_trailing_zeros(mask))
                mask &= mask - np.uint64(1)
                found += 1
            found = after
            index += _LANES
        for each in range(stepped, found):
            at = positions[each]
            steps[each] = ((np.int64(new[at]) - np.int64(old[at])) << shift) >> shift
        stepped = found
    return found


@_compiled
def _split(steps, signs, ordinals, extras):  # type: ignore[no-untyped-def]
    """A sign is as good as random, so no branch depends on it."""
    odd = np.int64(0)
    for first in range(0, steps.size, 8):
        byte = np.int64(0)
        for index in range(first, min(first + 8, steps.size)):
            step = np.int64(steps[index])
            negative = step >> 63
            byte |= (negative & 1) << (index - first)
            size = (step ^ negative) - negative
            ordinals[odd] = index
            extras[odd] = size - 2
            odd += size != 1
        signs[first >> 3] = byte
    return odd


@_compiled
def _join(signs, ordinals, extras, steps):  # type: ignore[no-untyped-def]
    for index in range(steps.size):
        steps[index] = 1 - 2 * (np.int32(signs[index >> 3]) >> (index & 7) & 1)
    for index in range(ordinals.size):
        at = ordinals[index]
        steps[at] = np.int64(steps[at]) * (np.int64(extras[index]) + 2)


@_compiled
def _pack_sorted(values, rice, unary, low):  # type: ignore[no-untyped-def]
    """The streams as words of 64 bits; the bits of the unary one."""
    last, bit, word, ones = np.int64(-1), np.int64(0), np.int64(0), np.uint64(0)
    held, bits, place = np.uint64(0), np.int64(0), 0
    mask = (np.int64(1) << rice) - 1
    for index in range(values.size):
        gap = np.int64(values[index]) - last - 1
        last = np.int64(values[index])
        bit += gap >> rice
        while bit >> 6 > word:
            unary[word] = ones
            ones = np.uint64(0)
            word += 1
        ones |= np.uint64(1) << np.uint64(bit & 63)
        bit += 1
        rest = np.uint64(gap & mask)
        held |= rest << np.uint64(bits)
        bits += rice
        if bits >= 64:
            bits -= 64
            low[place] = held
            place += 1
            held = rest >> np.uint64(rice - bits)
    unary[word] = ones
    low[place] = held
    return bit


@_compiled
def _unpack_sorted(unary, low, rice, span, values):  # type: ignore[no-untyped-def]
    """From words of 64 bits, of which ``low`` has one more than its bits need: the last value, ``span`` if one is
    beyond it; -1 if the number of codes is another."""
    count, found, at = values.size, 0, np.int64(0)
    last, previous = np.int64(-1), np.int64(-1)
    mask = np.uint64((np.int64(1) << rice) - 1)
    for word in range(unary.size):
        ones = np.uint64(unary[word])
        while ones != np.uint64(0):
            if found == count:
                return -1
            bit = word * 64 + np.int64(_trailing_zeros(ones))
            ones &= ones - np.uint64(1)
            shift = np.uint64(at & 63)
            # Shifting by 64 is undefined, so the upper word is shifted twice.
            upper = (low[(at >> 6) + 1] << np.uint64(1)) << (np.uint64(63) - shift)
            rest = (low[at >> 6] >> shift | upper) & mask
            at += rice
            last = min(last + 1 + ((bit - previous - 1) << rice | np.int64(rest)), np.int64(span))
            previous = bit
            values[found] = last
            found += 1
    return last if found == count else -1


@_compiled
def _golomb_order(extras):  # type: ignore[no-untyped-def]
    best, shortest = 0, np.int64(1) << 62
    for order in range(32):
        length = np.int64(order) * extras.size
        for index in range(extras.size):
            lead = (np.uint64(extras[index]) >> np.uint64(order)) + np.uint64(1)
            length += 2 * (63 - np.int64(leading_zeros(lead)))
        if length >= shortest:
            break
        best, shortest = order, length
    return best


@_compiled
def _pack_magnitudes(extras, order, unary, low):  # type: ignore[no-untyped-def]
    bit, place = np.int64(0), 0
    held, bits = np.uint64(0), np.int64(0)
    mask = (np.int64(1) << order) - 1
    for index in range(extras.size):
        extra = np.int64(extras[index])
        lead, exponent = (extra >> order) + 1, np.int64(0)
        while lead >> (exponent + 1):
            exponent += 1
        bit += exponent
        unary[bit >> 3] |= np.uint8(1 << (bit & 7))
        bit += 1
        rest = ((lead - (np.int64(1) << exponent)) << order) | (extra & mask)
        held |= np.uint64(rest) << np.uint64(bits)
        bits += exponent + order
        while bits >= 8:
            low[place] = np.uint8(held & np.uint64(255))
            held >>= np.uint64(8)
            bits -= 8
            place += 1
    if bits > 0:
        low[place] = np.uint8(held & np.uint64(255))
        place += 1
    return (bit + 7) >> 3, place


@_compiled
def _unpack_magnitudes(unary, low, order, extras):  # type: ignore[no-untyped-def]
    """Whether the streams hold exactly that many magnitudes."""
    count, found, previous = extras.size, 0, np.int64(-1)
    held, bits, place = np.uint64(0), np.int64(0), 0
    for byte in range(unary.size):
        ones = np.uint64(unary[byte])
        if ones == np.uint64(0) and byte == unary.size - 1:
            return False
        while ones != np.uint64(0):
            bit = byte * 8 + np.int64(_trailing_zeros(ones))
            ones &= ones - np.uint64(1)
            exponent = bit - previous - 1
            previous = bit
            width = exponent + order
            if found == count or width > _MAX_BITS:
                return False
            while bits < width:
                if place == low.size:
                    return False
                held |= np.uint64(low[place]) << np.uint64(bits)
                bits += 8
                place += 1
            rest = np.int64(held & np.uint64((np.int64(1) << width) - 1))
            held >>= np.uint64(width)
            bits -= width
            lead = (np.int64(1) << exponent) + (rest >> order)
            mask = (np.int64(1) << order) - 1
            extras[found] = np.uint32((((lead - 1) << order) | (rest & mask)) & 0xFFFFFFFF)
            found += 1
    return found == count and place == low.size


@_compiled
def _add(values, positions, steps):  # type: ignore[no-untyped-def]
    """Asks for every cache line in turn, not only for those that change: they are hashed next."""
    asked, line = np.int64(0), 64 // values.itemsize
    for index in range(positions.size):
        at = np.int64(positions[index])
        while asked < min(at + _AHEAD, values.size):
            _prefetch(values, asked)
            asked += line
        values[at] += steps[index]


@_compiled
def _add_warm(values, positions, steps):  # type: ignore[no-untyped-def]
    for index in range(positions.size):
        values[positions[index]] += steps[index]


class NumbaKernel(NumbaHuffman):
    """See :class:`astraflow_plugin_delta.coding.codec.Kernel`."""

    name = "numba"

    def __init__(self) -> None:
        self._local = threading.local()

    def diff(self, old: Array, new: Array) -> tuple[Array, Array]:
        positions, steps = self._scratch(len(old) + _EAGER)
        found = _diff(old, new, positions, steps)
        return positions[:found].copy(), steps[:found].copy()

    def _scratch(self, count: int) -> Array:
        """Two rows of this thread's own, used again: fresh pages cost more than the scan."""
        held: Array | None = getattr(self._local, "held", None)
        if held is None or held.shape[1] < count:
            held = self._local.held = np.empty((2, count), np.int32)
        return held

    def split(self, steps: Array) -> tuple[Array, Array, Array]:
        signs = np.zeros((len(steps) + 7) // 8, np.uint8)
        ordinals, extras = np.empty(len(steps), np.int32), np.empty(len(steps), np.uint32)
        odd = _split(steps, signs, ordinals, extras)
        return signs, ordinals[:odd], extras[:odd]

    def join(self, signs: Array, count: int, ordinals: Array, extras: Array) -> Array:
        steps = np.empty(count, np.int32)
        _join(signs, ordinals, extras, steps)
        return steps

    def pack_sorted(self, values: Array, rice: int, span: int) -> tuple[Array, Array]:
        unary = np.empty(((span >> rice) + len(values)) // 64 + 1, np.uint64)
        low = np.empty(len(values) * rice // 64 + 1, np.uint64)
        bits = _pack_sorted(values, rice, unary, low)
        return streams.to_bytes(unary, bits), streams.to_bytes(low, len(values) * rice)

    def unpack_sorted(self, unary: Array, low: Array, count: int, rice: int, span: int) -> Array:
        values = np.empty(count, np.int32)
        ended = not len(unary) or unary[-1]  # the last byte has the last code
        last = -1
        if ended:
            words, rests = streams.to_words(unary), streams.to_words(low)
            last = _unpack_sorted(words, rests, rice, span, values)
        if count and last == span:
            raise BadFrame(f"a position beyond {span}")
        if count and last < 0:
            raise BadFrame(f"not {count} codes in {len(unary)} bytes")
        if not count and len(unary):
            raise BadFrame(f"{len(unary)} bytes for no code")
        return values

    def golomb_order(self, extras: Array) -> int:
        return int(_golomb_order(extras))

    def pack_magnitudes(self, extras: Array, order: int) -> tuple[Array, Array]:
        longest = int(extras.max(initial=0) >> order) + 1
        unary = np.zeros((longest.bit_length() * len(extras)) // 8 + 1, np.uint8)
        low = np.empty(((longest.bit_length() + order) * len(extras)) // 8 + 1, np.uint8)
        used, used_low = _pack_magnitudes(extras, order, unary, low)
        return unary[:used], low[:used_low]

    def unpack_magnitudes(self, unary: Array, low: Array, count: int, order: int) -> Array:
        extras = np.empty(count, np.uint32)
        if not _unpack_magnitudes(unary, low, order, extras):
            raise BadFrame(f"not {count} magnitudes in {len(unary)} and {len(low)} bytes")
        return extras

    def add(self, values: Array, positions: Array, steps: Array, warm: bool) -> None:
        # Asking for lines that are there costs three times the additions.
        (_add_warm if warm else _add)(values, positions, steps)
