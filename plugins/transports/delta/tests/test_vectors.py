"""The bytes on the wire stay what they are, and what `docs/weights-delta.md` says is enough to read them.

``read`` follows that document bit by bit and shares no code with the plugin.
"""

from __future__ import annotations

import itertools
import json
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest
import xxhash

from astraflow_plugin_delta.coding.codec import Codec
from astraflow_plugin_delta.coding.kernel_numpy import NumpyKernel

VECTORS = Path(__file__).parent / "vectors"
SAID: dict[str, dict[str, int]] = json.loads((VECTORS / "vectors.json").read_text())


class Bits:
    """A stream, lowest bit of the first byte first."""

    def __init__(self, data: bytes) -> None:
        self.value, self.at = int.from_bytes(data, "little"), 0

    def take(self, count: int) -> int:
        result = self.value >> self.at & ((1 << count) - 1)
        self.at += count
        return result

    def unary(self) -> int:
        count = 0
        while not self.take(1):
            count += 1
        return count


class Huffman:
    """Numbers as codes of classes and raw bits."""

    def __init__(self, table: bytes, count: int, signed: bool) -> None:
        halves = [half for byte in table for half in (byte & 15, byte >> 4)]
        self.signed, self.codes = signed, dict[tuple[int, int], int]()
        code, before = 0, 0
        for length, symbol in sorted((halves[i], i) for i in range(count) if halves[i]):
            code <<= length - before
            self.codes[length, code] = symbol
            code, before = code + 1, length
        assert code == 1 << before, "the code is not complete"

    def numbers(self, codes: bytes, low: bytes, count: int) -> list[int]:
        stream, rests = Bits(codes), Bits(low)
        found = []
        for _ in range(count):
            length, code = 1, stream.take(1)
            while (length, code) not in self.codes:
                length, code = length + 1, code << 1 | stream.take(1)
            symbol = self.codes[length, code]
            kind = symbol >> self.signed
            if kind < 63:
                number = kind + 1
            else:
                octave, half = 6 + (kind - 63) // 2, (kind - 63) % 2
                number = (2 + half << octave - 1) + rests.take(octave - 1)
            found.append(-number if self.signed and symbol & 1 else number)
        return found


def read(frame: bytes, old: bytes, block: int) -> bytes:
    """The block after the frame."""
    checksum, code, width, rice, rice_odd, order, elements, changed, odd, *lengths = struct.unpack(
        "<QBBBBBxxxIIIIII", frame[:40]
    )
    assert xxhash.xxh3_64_intdigest(frame[8:], seed=block) == checksum
    payload, place = frame[40:], 0

    def stream(length: int) -> bytes:
        nonlocal place
        place += length
        return payload[place - length : place]

    def positions(unary: bytes, low: bytes, count: int, parameter: int) -> list[int]:
        quotients, rests, last, found = Bits(unary), Bits(low), -1, []
        for _ in range(count):
            last += (quotients.unary() << parameter | rests.take(parameter)) + 1
            found.append(last)
        return found

    values = [int.from_bytes(old[i : i + width], "little") for i in range(0, len(old), width)]
    assert len(values) == elements
    if code == 3:
        return payload
    if code == 4:
        tables = [
            Huffman(stream((count + 1) // 2), count, signed)
            for count, signed in ((rice, False), (rice_odd, True))
        ]
        distances = tables[0].numbers(stream(lengths[0]), stream(lengths[1]), changed)
        steps = tables[1].numbers(stream(lengths[2]), payload[place:], changed)
        for at, step in zip(itertools.accumulate(distances), steps, strict=True):
            values[at - 1] = (values[at - 1] + step) % (1 << 8 * width)
        return b"".join(value.to_bytes(width, "little") for value in values)
    gaps = stream(lengths[0])
    where = positions(gaps, stream((changed * rice + 7) // 8), changed, rice)
    if code == 2:
        for at in where:
            values[at] = int.from_bytes(stream(width), "little")
    else:
        signs = Bits(stream((changed + 7) // 8))
        which = list(range(odd))
        if 0 < odd < changed:
            unary = stream(lengths[1])
            which = positions(unary, stream((odd * rice_odd + 7) // 8), odd, rice_odd)
        prefixes, suffixes = Bits(stream(lengths[2])), Bits(payload[place:])
        magnitudes = dict.fromkeys(range(changed), 1)
        for ordinal in which:
            exponent = prefixes.unary()
            rest = suffixes.take(exponent + order)
            lead = (1 << exponent) + (rest >> order)
            magnitudes[ordinal] = ((lead - 1) << order | rest & ((1 << order) - 1)) + 2
        for ordinal, at in enumerate(where):
            step = -magnitudes[ordinal] if signs.take(1) else magnitudes[ordinal]
            values[at] = (values[at] + step) % (1 << 8 * width)
    return b"".join(value.to_bytes(width, "little") for value in values)


@pytest.mark.parametrize("name", SAID)
def test_each_vector_is_read_as_documented_and_written_the_same_or_shorter(name: str) -> None:
    old, new, frame = (
        (VECTORS / f"{name}.{each}").read_bytes() for each in ("old", "new", "frame")
    )
    assert read(frame, old, 3) == new
    codec = Codec(NumpyKernel())
    target = bytearray(old)
    codec.apply(memoryview(frame), memoryview(target), 3)
    assert bytes(target) == new
    changes = codec.diff(memoryview(old), memoryview(new), SAID[name]["width"])
    written = codec.encode(changes, memoryview(new), 3)
    assert written == frame if written[8] == frame[8] else len(written) < len(frame)
    assert read(written, old, 3) == new


def test_the_vectors_show_every_code() -> None:
    assert {each["code"] for each in SAID.values()} == {1, 2, 3, 4}
    for code in (1, 4):
        assert {each["width"] for each in SAID.values() if each["code"] == code} == {1, 2, 4}
    assert SAID["bitmap"]["rice"] == 0 and SAID["signs"]["odd"] == 0
    assert SAID["fp32"]["order"] > 0


def test_a_link_and_the_list_are_laid_out_as_documented() -> None:
    link = (VECTORS / "link.bin").read_bytes()
    magic, length, checksum = struct.unpack("<8sIQ", link[:20])
    packed = link[20 : 20 + length]
    assert magic == b"AFDELTA1" and xxhash.xxh3_64_intdigest(packed) == checksum
    head: Any = msgspec.msgpack.decode(packed)
    assert head[:7] == ["solver", 6, "0" * 32, 7, "1" * 32, 6 * 4096, 4096]
    table = struct.unpack(f"<{len(head[7]) // 4}I", head[7])
    assert table[::2] == (3, 5)
    place = 20 + length
    old, new = ((VECTORS / f"steps.{each}").read_bytes() for each in ("old", "new"))
    for block, size in zip(table[::2], table[1::2], strict=True):
        assert read(link[place : place + size], old, block) == new
        place += size
    assert place == len(link)
    listed = (VECTORS / "links.bin").read_bytes()
    assert xxhash.xxh3_128_digest(listed[16:]) == listed[:16]
    entry: Any = msgspec.msgpack.decode(listed[16:])
    assert entry == [[6, "0" * 32, 7, "1" * 32, len(link), xxhash.xxh3_128_digest(link)]]
