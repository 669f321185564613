"""The loops in NumPy alone: for hosts without a compiler, and to check the compiled ones against."""

from __future__ import annotations

import numpy as np

from astraflow_plugin_delta.coding.codec import Array
from astraflow_plugin_delta.coding.frame import BadFrame
from astraflow_plugin_delta.coding.huffman_numpy import NumpyHuffman, pack_bits, unpack_bits

_SCAN = 1 << 16
"""Elements compared at once, so that the mask stays in the cache."""
MAX_BITS = 32
"""Most low bits that one Exp-Golomb code may have."""


class NumpyKernel(NumpyHuffman):
    """See :class:`astraflow_plugin_delta.coding.codec.Kernel`."""

    name = "numpy"

    def diff(self, old: Array, new: Array) -> tuple[Array, Array]:
        found = []
        for start in range(0, len(old), _SCAN):
            end = start + _SCAN
            found.append(np.flatnonzero(old[start:end] != new[start:end]) + start)
        positions = np.concatenate(found).astype(np.int32) if found else np.empty(0, np.int32)
        steps = np.subtract(new[positions], old[positions])  # wraps within the type
        return positions, steps.astype(np.int32)

    def split(self, steps: Array) -> tuple[Array, Array, Array]:
        magnitudes = np.abs(steps.astype(np.int64))
        ordinals = np.flatnonzero(magnitudes != 1)
        extras = (magnitudes[ordinals] - 2).astype(np.uint32)
        return np.packbits(steps < 0, bitorder="little"), ordinals.astype(np.int32), extras

    def join(self, signs: Array, count: int, ordinals: Array, extras: Array) -> Array:
        magnitudes = np.ones(count, np.int64)
        magnitudes[ordinals] = extras.astype(np.int64) + 2
        negative = np.unpackbits(signs, count=count, bitorder="little").astype(bool)
        return np.where(negative, -magnitudes, magnitudes).astype(np.int32)

    def pack_sorted(self, values: Array, rice: int, span: int) -> tuple[Array, Array]:
        gaps: Array = np.diff(values.astype(np.int64), prepend=-1) - 1
        shifts = np.arange(rice)
        low = ((gaps[:, None] >> shifts) & 1).astype(np.uint8)
        return _unary(gaps >> rice), np.packbits(low.ravel(), bitorder="little")

    def unpack_sorted(self, unary: Array, low: Array, count: int, rice: int, span: int) -> Array:
        quotients = _quotients(unary, count)
        bits = np.unpackbits(low, count=count * rice, bitorder="little").reshape(count, rice)
        rests = (bits.astype(np.int64) << np.arange(rice)).sum(1)
        values = np.cumsum((quotients << rice) + rests + 1) - 1
        if count and values[-1] >= span:
            raise BadFrame(f"position {values[-1]} of {span}")
        return values.astype(np.int32)

    def golomb_order(self, extras: Array) -> int:
        best, shortest = 0, np.inf
        for order in range(32):
            exponents = np.frexp((extras >> order) + 1.0)[1] - 1
            length = order * len(extras) + 2 * int(exponents.sum())
            if length >= shortest:
                break
            best, shortest = order, length
        return best

    def pack_magnitudes(self, extras: Array, order: int) -> tuple[Array, Array]:
        extras = extras.astype(np.int64)
        lead = (extras >> order) + 1
        exponents = np.frexp(lead.astype(np.float64))[1].astype(np.int64) - 1
        rests = ((lead - (np.int64(1) << exponents)) << order) | (extras & ((1 << order) - 1))
        return _unary(exponents), pack_bits(rests, exponents + order)

    def unpack_magnitudes(self, unary: Array, low: Array, count: int, order: int) -> Array:
        exponents = _quotients(unary, count)
        widths = exponents + order
        total = int(widths.sum())
        if widths.max(initial=0) > MAX_BITS or (total + 7) // 8 != len(low):
            raise BadFrame(f"magnitudes of {total} bits in {len(low)} bytes")
        rests = unpack_bits(low, widths)
        lead = (np.int64(1) << exponents) + (rests >> order)
        extras = ((lead - 1) << order) | (rests & ((1 << order) - 1))
        return extras.astype(np.uint32)  # wraps, as steps do

    def add(self, values: Array, positions: Array, steps: Array, warm: bool) -> None:
        values[positions] += steps.astype(values.dtype)


def _unary(quotients: Array) -> Array:
    """Each number as that many zeros and a one."""
    ones = np.cumsum(quotients + 1) - 1
    bits = np.zeros(int(ones[-1]) + 1 if len(ones) else 0, np.uint8)
    bits[ones] = 1
    return np.packbits(bits, bitorder="little")


def _quotients(unary: Array, count: int) -> Array:
    ones = np.flatnonzero(np.unpackbits(unary, bitorder="little"))
    length = int(ones[-1]) // 8 + 1 if len(ones) else 0
    if len(ones) != count or length != len(unary):
        raise BadFrame(f"{len(ones)} codes in {len(unary)} bytes, expected {count}")
    return np.diff(ones, prepend=-1) - 1
