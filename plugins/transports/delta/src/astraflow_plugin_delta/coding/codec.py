"""Codes what changed in one block, and puts it back.

Positions are Rice-coded gaps (with parameter 0 that stream is the bitmap itself). A change is a step: the
difference of the bit patterns as integers modulo 2^(8·width), which for floats of one sign counts units in
the last place. Nearly all steps of small updates are ±1, so each has a sign bit, and those that are not ±1
are a second, shorter list of Rice-coded positions with their magnitudes in Exp-Golomb code. Real training
also leaves changes in clusters and steps of any size: then gaps and steps have Huffman codes of their own
block. Streams are kept apart rather than interleaved, so that NumPy can read each one at once. All these,
raw values and the whole block are measured against each other, and the smallest is sent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from astraflow_plugin_delta.coding import huffman
from astraflow_plugin_delta.coding.frame import (
    DENSE,
    HUFFMAN,
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

    def golomb_order(self, extras: Array) -> int:
        """The order of the Exp-Golomb code that is shortest for ``extras``, which are not empty."""

    def pack_magnitudes(self, extras: Array, order: int) -> tuple[Array, Array]:
        """Unary and low streams (u8) of an Exp-Golomb code."""

    def unpack_magnitudes(self, unary: Array, low: Array, count: int, order: int) -> Array:
        """The extras again; raises :class:`BadFrame` if they are not there."""

    def estimate(self, values: Array, signed: bool) -> int:
        """Bits of numbers (int32, not 0) like these, ``huffman.SAMPLE`` of them at most: entropy of the classes,
        a bit for each class that occurs, since a sample fits itself too well (Miller 1955), and raw bits."""

    def histogram(self, values: Array, signed: bool) -> Array:
        """How often each symbol (``huffman.SYMBOLS`` of them, int64) stands for one of ``values``."""

    def code_lengths(self, counts: Array) -> Array:
        """See :func:`astraflow_plugin_delta.coding.huffman.code_lengths`."""

    def pack_symbols(self, values: Array, signed: bool, lengths: Array) -> tuple[Array, Array]:
        """Streams (u8) of codes and of raw bits of numbers whose symbols all have codes."""

    def unpack_symbols(
        self, codes: Array, low: Array, count: int, signed: bool, lengths: Array
    ) -> Array:
        """The numbers again (int64); raises :class:`BadFrame` unless the streams have exactly ``count``."""

    def add(self, values: Array, positions: Array, steps: Array, warm: bool) -> None:
        """Add steps in place, wrapping; positions are within bounds and ascending. ``warm``: the values are in the
        cache."""


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
            if len(gaps) + len(low) + count * changes.width < _length(payload):
                head = Head(
                    RAW, changes.width, changes.elements, count, rice=rice, gap_bytes=len(gaps)
                )
                payload = [gaps, low, values[positions].view(np.uint8)]
            if values.nbytes <= _length(payload):
                head = Head(DENSE, changes.width, changes.elements, changes.elements)
                payload = [values.view(np.uint8)]
        if coded := self._huffman(changes, positions, steps, _length(payload)):
            head, payload = coded
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
            order = self.kernel.golomb_order(extras[:: -(-odd // _SAMPLE)].copy())
            magnitudes, magnitude_low = self.kernel.pack_magnitudes(extras, order)
            streams += [magnitudes, magnitude_low]
        head = Head(
            STEPS, changes.width, changes.elements, count, odd, rice, rice_odd, order,
            len(gaps), len(odd_unary), len(magnitudes),
        )  # fmt: skip
        return head, streams

    def _huffman(
        self, changes: Changes, positions: Array, steps: Array, most: int
    ) -> tuple[Head, list[Array]] | None:
        """None unless it takes fewer bytes than ``most``, by a share that is worth the time as a sample says."""
        every = -(-len(steps) // huffman.SAMPLE)
        later = positions[every::every]
        gaps, moves = later - positions[every - 1 :: every][: len(later)], steps[::every].copy()
        bits = every * (self.kernel.estimate(gaps, False) + self.kernel.estimate(moves, True))
        if bits // 8 > most - most // _WORTH:
            return None
        tables, size = [], 0
        lists = ((np.diff(positions, prepend=np.int32(-1)), False), (steps, True))
        for values, signed in lists:
            counts = self.kernel.histogram(values, signed)
            if np.count_nonzero(counts) < 2:
                return None
            tables.append(self.kernel.code_lengths(counts))
            codes, raw = huffman.bits(counts, tables[-1], signed)
            size += (huffman.entries(tables[-1]) + 1) // 2 + (codes + 7) // 8 + (raw + 7) // 8
        if size >= most:
            return None
        (gaps, gaps_low), (moves, moves_low) = (
            self.kernel.pack_symbols(values, signed, lengths)
            for (values, signed), lengths in zip(lists, tables, strict=True)
        )
        head = Head(
            HUFFMAN, changes.width, changes.elements, len(steps), 0,
            huffman.entries(tables[0]), huffman.entries(tables[1]), 0,
            len(gaps), len(gaps_low), len(moves),
        )  # fmt: skip
        return head, [*map(huffman.pack_lengths, tables), gaps, gaps_low, moves, moves_low]

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
        if head.code == HUFFMAN:
            return self._read_huffman(head, streams)
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

    def _read_huffman(self, head: Head, streams: _Streams) -> Changes:
        tables = [
            huffman.unpack_lengths(streams.take((count + 1) // 2), count, signed)
            for count, signed in ((head.rice, False), (head.rice_odd, True))
        ]
        codes, low = streams.take(head.gap_bytes), streams.take(head.odd_bytes)
        gaps = self.kernel.unpack_symbols(codes, low, head.changed, False, tables[0])
        positions = np.cumsum(gaps) - 1
        if head.changed and positions[-1] >= head.elements:
            raise BadFrame(f"position {positions[-1]} of {head.elements}")
        codes, low = streams.take(head.magnitude_bytes), streams.rest()
        steps = self.kernel.unpack_symbols(codes, low, head.changed, True, tables[1])
        where, moves = positions.astype(np.int32), steps.astype(np.int32)  # wraps, as steps do
        return Changes(head.width, head.elements, where, moves)

    def apply(self, frame: memoryview, target: memoryview, block: int, warm: bool = False) -> None:
        """Bring ``target``, the writable bytes of block number ``block`` as the frame's base has them, to
        the new state. ``warm``: they were read or written just now. Raises :class:`BadFrame` before anything is
        written."""
        changes = self.decode(frame, block, len(target))
        values = np.frombuffer(target, SIGNED[changes.width])
        if changes.positions is None:
            values[:] = changes.values
        elif changes.steps is None:
            values[changes.positions] = changes.values
        else:
            self.kernel.add(values, changes.positions, changes.steps, warm)

    def rehearse(self) -> None:
        """Code and apply a small change of every width: a kernel that is compiled at its first use is compiled
        now, not while a trainer publishes."""
        for width, kind in SIGNED.items():
            for rare in (64, 3):
                old = np.zeros(_SAMPLE, kind)
                new = old.copy()
                new[: _SAMPLE // 2 : 8], new[: _SAMPLE // 2 : rare] = 1, 40
                before, after = old.data.cast("B"), new.data.cast("B")
                frame = self.encode(self.diff(before, after, width), None, 0)
                for warm in (False, True):
                    self.apply(memoryview(frame), before, 0, warm)


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


_WORTH = 20
"""A twentieth less, by a sample, is worth Huffman codes."""
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
