"""Codes what changed in one block, and puts it back.

Positions are Rice-coded gaps (with parameter 0 that stream is the bitmap itself). A change is a step: the
difference of the bit patterns as integers modulo 2^(8·width), which for floats of one sign counts units in
the last place. Nearly all steps of small updates are ±1, so each has a sign bit, and those that are not ±1
are a second, shorter list of Rice-coded positions with their magnitudes in Exp-Golomb code. Streams are
kept apart rather than interleaved, so that NumPy can read each one at once. Steps, raw values and the
whole block are measured against each other, and the smallest is sent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from astraflow_plugin_delta.frame import (
    DENSE,
    MAX_RICE,
    RAW,
    STEPS,
    BadFrame,
    Head,
    open_frame,
    seal,
)

Array = NDArray[Any]
SIGNED = {1: np.int8, 2: np.int16, 4: np.int32}
"""Element type by width; steps of it wrap as the format wants."""


class Kernel(Protocol):
    """The loops. Both kernels give the same bits and refuse the same bytes.

    ``u8`` arrays are bytes of a stream; positions, ordinals and steps are int32; extras are uint32.
    """

    name: str

    def diff(self, old: Array, new: Array) -> tuple[Array, Array]:
        """Positions where two arrays of one signed type differ, and the steps from old to new."""

    def split(self, steps: Array) -> tuple[Array, Array, Array]:
        """Sign bits (u8), ordinals of the steps that are not ±1, and their ``|step| - 2``."""

    def join(self, signs: Array, count: int, ordinals: Array, extras: Array) -> Array:
        """The steps again."""

    def pack_sorted(self, values: Array, rice: int, span: int) -> tuple[Array, Array]:
        """Unary and low streams (u8) of ascending ``values`` below ``span``."""

    def unpack_sorted(self, unary: Array, low: Array, count: int, rice: int, span: int) -> Array:
        """The values again; raises :class:`BadFrame` unless there are exactly ``count`` below ``span``."""

    def pack_magnitudes(self, extras: Array, order: int) -> tuple[Array, Array]:
        """Unary and low streams (u8) of an Exp-Golomb code."""

    def unpack_magnitudes(self, unary: Array, low: Array, count: int, order: int) -> Array:
        """The extras again; raises :class:`BadFrame` if they are not there."""

    def add(self, values: Array, positions: Array, steps: Array) -> None:
        """Add steps in place, wrapping; positions are within bounds and ascending."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What a frame says: ``positions`` int32 ascending, or None for all; ``steps`` int32, or None if
    ``values`` holds new values of the block's signed type."""

    width: int
    elements: int
    positions: Array | None
    steps: Array | None
    values: Array | None = None


class Codec:
    """Codes blocks with a kernel; holds no state, so threads may share it."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def diff(self, old: memoryview, new: memoryview, width: int) -> Changes:
        """What changed between two states of a block, both of a multiple of ``width`` bytes."""
        before, after = (np.frombuffer(data, SIGNED[width]) for data in (old, new))
        positions, steps = self.kernel.diff(before, after)
        return Changes(width, len(before), positions, steps)

    def encode(self, changes: Changes, new: memoryview | None, block: int) -> bytes:
        """A frame for the found ``changes``, the smallest if the bytes ``new`` that they lead to are there
        and of steps if not; empty if nothing changed."""
        positions, steps = changes.positions, changes.steps
        assert positions is not None and steps is not None, "these were found by no comparison"
        count = len(positions)
        if not count:
            return b""
        rice = rice_parameter(count, changes.elements)
        gaps, low = self.kernel.pack_sorted(positions, rice, changes.elements)
        head, payload = self._steps(changes, steps, rice, gaps, low)
        if new is not None:
            values = np.frombuffer(new, SIGNED[changes.width])
            raw = len(gaps) + len(low) + count * changes.width
            if values.nbytes <= min(raw, _length(payload)):
                dense = Head(DENSE, changes.width, changes.elements, changes.elements)
                return seal(dense, values.tobytes(), block)
            if raw < _length(payload):
                head = Head(
                    RAW, changes.width, changes.elements, count, rice=rice, gap_bytes=len(gaps)
                )
                payload = [gaps, low, values[positions].view(np.uint8)]
        return seal(head, b"".join(part.tobytes() for part in payload), block)

    def _steps(
        self, changes: Changes, steps: Array, rice: int, gaps: Array, low: Array
    ) -> tuple[Head, list[Array]]:
        count = len(steps)
        signs, ordinals, extras = self.kernel.split(steps)
        odd = len(ordinals)
        rice_odd, order = 0, 0
        streams = [gaps, low, signs]
        odd_unary = _EMPTY
        if 0 < odd < count:
            rice_odd = rice_parameter(odd, count)
            odd_unary, odd_low = self.kernel.pack_sorted(ordinals, rice_odd, count)
            streams += [odd_unary, odd_low]
        magnitudes = _EMPTY
        if odd:
            order = golomb_order(extras)
            magnitudes, magnitude_low = self.kernel.pack_magnitudes(extras, order)
            streams += [magnitudes, magnitude_low]
        head = Head(
            STEPS, changes.width, changes.elements, count, odd, rice, rice_odd, order,
            len(gaps), len(odd_unary), len(magnitudes),
        )  # fmt: skip
        return head, streams

    def decode(self, frame: memoryview, block: int, size: int) -> Changes:
        """What a frame for block number ``block`` of ``size`` bytes says; raises :class:`BadFrame`."""
        head, payload = open_frame(frame, block, size)
        if len(payload) > 2 * size + 64:
            raise BadFrame(f"{len(payload)} bytes for a block of {size}")
        streams = _Streams(payload)
        if head.code == DENSE:
            values = streams.take(size).view(SIGNED[head.width])
            streams.finish()
            return Changes(head.width, head.elements, None, None, values)
        gaps = streams.take(head.gap_bytes)
        low = streams.bits(head.changed * head.rice)
        positions = self.kernel.unpack_sorted(gaps, low, head.changed, head.rice, head.elements)
        if head.code == RAW:
            values = streams.take(head.changed * head.width).view(SIGNED[head.width])
            streams.finish()
            return Changes(head.width, head.elements, positions, None, values)
        signs = streams.bits(head.changed)
        ordinals, extras = np.arange(head.odd, dtype=np.int32), np.empty(0, np.uint32)
        if 0 < head.odd < head.changed:
            unary = streams.take(head.odd_bytes)
            low = streams.bits(head.odd * head.rice_odd)
            ordinals = self.kernel.unpack_sorted(unary, low, head.odd, head.rice_odd, head.changed)
        if head.odd:
            unary = streams.take(head.magnitude_bytes)
            extras = self.kernel.unpack_magnitudes(unary, streams.rest(), head.odd, head.order)
        else:
            streams.finish()
        steps = self.kernel.join(signs, head.changed, ordinals, extras)
        return Changes(head.width, head.elements, positions, steps)

    def apply(self, frame: memoryview, target: memoryview, block: int) -> None:
        """Bring ``target``, the writable bytes of block number ``block`` as the frame's base has them, to
        the new state. Raises :class:`BadFrame` before anything is written."""
        changes = self.decode(frame, block, len(target))
        values = np.frombuffer(target, SIGNED[changes.width])
        if changes.positions is None:
            values[:] = changes.values
        elif changes.steps is None:
            values[changes.positions] = changes.values
        else:
            self.kernel.add(values, changes.positions, changes.steps)

    def rehearse(self) -> None:
        """Code and apply a small change of every width: a kernel that is compiled at its first use is compiled
        now, not while a trainer publishes."""
        for width, kind in SIGNED.items():
            old = np.zeros(_SAMPLE, kind)
            new = old.copy()
            new[::8], new[::64] = 1, 5
            before, after = old.data.cast("B"), new.data.cast("B")
            self.apply(memoryview(self.encode(self.diff(before, after, width), None, 0)), before, 0)


def rice_parameter(count: int, span: int) -> int:
    """The Rice parameter k for ``count`` values spread evenly below ``span``: the one with the fewest bits
    for gaps that are geometric, k + 1 / (1 - (1 - p)^(2^k)) each (Golomb 1966; Rice 1979)."""
    stay = 1 - count / span
    best, fewest = 0, math.inf
    for rice in range(MAX_RICE + 1):
        bits = rice + 1 / (1 - stay ** (1 << rice))
        if bits >= fewest:
            break
        best, fewest = rice, bits
    return best


def golomb_order(extras: Array) -> int:
    """The order of the Exp-Golomb code that is shortest for (a sample of) ``extras``, which are not empty."""
    sample = extras[:: -(-len(extras) // _SAMPLE)].astype(np.int64)
    best, shortest = 0, np.inf
    for order in range(32):
        exponents = np.frexp(((sample >> order) + 1).astype(np.float64))[1] - 1
        length = order * len(sample) + 2 * int(exponents.sum())
        if length >= shortest:
            break
        best, shortest = order, length
    return best


_SAMPLE = 512
_EMPTY: Array = np.empty(0, np.uint8)


def may_be_raw(changes: Changes) -> bool:
    """Whether steps may be longer than values, by a sample of them."""
    assert changes.steps is not None
    sample = changes.steps[:: len(changes.steps) // _SAMPLE + 1].astype(np.int64)
    return len(sample) > 0 and 2 * np.log2(np.abs(sample).mean() + 1) + 2 > 8 * changes.width


def _length(streams: list[Array]) -> int:
    return sum(len(stream) for stream in streams)


class _Streams:
    """Cuts a payload into its streams."""

    def __init__(self, payload: memoryview) -> None:
        self._rest: Array = np.frombuffer(payload, np.uint8)

    def take(self, length: int) -> Array:
        if length > len(self._rest):
            raise BadFrame(f"a stream of {length} bytes where {len(self._rest)} are left")
        taken, self._rest = self._rest[:length], self._rest[length:]
        return taken

    def bits(self, count: int) -> Array:
        return self.take((count + 7) // 8)

    def rest(self) -> Array:
        return self._rest

    def finish(self) -> None:
        if len(self._rest):
            raise BadFrame(f"{len(self._rest)} bytes after its last stream")
