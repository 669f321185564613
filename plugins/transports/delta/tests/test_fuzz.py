"""Arbitrary bytes never crash a decoder, never hang it, and never write outside of the target."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from astraflow_core.errors import WireError
from astraflow_plugin_delta.coding.codec import Codec
from astraflow_plugin_delta.coding.frame import (
    DENSE,
    HEAD,
    HUFFMAN,
    RAW,
    STEPS,
    BadFrame,
    Head,
    seal,
)
from astraflow_plugin_delta.coding.kernel_numpy import NumpyKernel
from astraflow_plugin_delta.link import (
    _START,
    BadLink,
    LinkEntry,
    LinkHead,
    entry_of,
    open_index,
    open_link,
    pack_index,
    pack_link,
)
from astraflow_testing.damage import assert_refused_or_read, damaged

GUARD, SIZE = 4096, 2048
NUMPY = Codec(NumpyKernel())


def apply_guarded(codec: Codec, frame: bytes) -> bytes | None:
    """The block after the frame, None if it was refused; the memory around it must not change."""
    memory = np.full(2 * GUARD + SIZE, 0xA5, np.uint8)
    target = memoryview(memory)[GUARD : GUARD + SIZE]
    before = memory.copy()
    try:
        codec.apply(memoryview(frame), target, 3)
    except BadFrame:
        assert (memory == before).all(), "it was refused after something had been written"
        return None
    assert (memory[:GUARD] == 0xA5).all() and (memory[GUARD + SIZE :] == 0xA5).all()
    return memory[GUARD : GUARD + SIZE].tobytes()


def resealed(frame: bytes) -> bytes:
    """With a checksum that is right, so that the decoder has to look."""
    fields = HEAD.unpack_from(frame.ljust(HEAD.size, b"\0"))
    names = (1, 2, 6, 7, 8, 3, 4, 5, 9, 10, 11)
    return seal(Head(*(fields[i] for i in names)), frame[HEAD.size :], 3)


def seeds() -> list[bytes]:
    """Valid frames of every code and width."""
    generator = np.random.default_rng(0)
    found = []
    for width in (1, 2, 4):
        count = SIZE // width
        old = generator.integers(0, 256, SIZE, dtype=np.uint8).view(f"u{width}")
        for density in (0.01, 0.3, 1.0):
            for spread in (1, 3, 256**width // 2):
                new = old.copy()
                where = np.flatnonzero(generator.random(count) < density)
                new[where] += generator.integers(1, spread + 1, where.size).astype(new.dtype)
                data = memoryview(new.view(np.uint8))
                changes = NUMPY.diff(memoryview(old.view(np.uint8)), data, width)
                if len(frame := NUMPY.encode(changes, data, 3)):
                    found.append(frame)
    assert {frame[8] for frame in found} == {STEPS, RAW, DENSE, HUFFMAN}
    return found


def mutate(frame: bytes, generator: np.random.Generator) -> bytes:
    data = bytearray(frame)
    for _ in range(generator.integers(1, 4)):
        kind, at = generator.integers(6), int(generator.integers(8, max(len(data), 9)))
        if kind == 0 and at < len(data):
            data[at] ^= 1 << generator.integers(8)
        elif kind == 1:
            data[at:at] = generator.bytes(int(generator.integers(1, 9)))
        elif kind == 2:
            del data[at : at + int(generator.integers(1, 9))]
        elif kind == 3:
            field = 16 + 4 * int(generator.integers(6))
            value = generator.choice([0, 1, 2**16, 2**31, 2**32 - 1, len(data), SIZE])
            data[field : field + 4] = struct.pack("<I", int(value))
        elif kind == 4:
            data[8 + int(generator.integers(8))] = int(generator.integers(256))
        elif len(data) > HEAD.size:  # two bytes change places: a table of lengths stays complete
            first, second = generator.integers(HEAD.size, min(len(data), HEAD.size + 64), 2)
            data[first], data[second] = data[second], data[first]
    return resealed(bytes(data))


def campaign(codec: Codec, other: Codec | None, rounds: int, seed: int) -> set[str]:
    """Mutate what was accepted or refused in a new way again; ``other`` must decide the same."""
    generator = np.random.default_rng(seed)
    corpus = seeds()
    ways: set[str] = set()
    for _ in range(rounds):
        frame = mutate(corpus[generator.integers(len(corpus))], generator)
        result = apply_guarded(codec, frame)
        if other is not None:
            assert result == apply_guarded(other, frame)
        way = why(codec, frame)
        if way not in ways:
            ways.add(way)
            corpus.append(frame)
    return ways


def why(codec: Codec, frame: bytes) -> str:
    """Through which part of the decoder a frame went."""
    try:
        changes = codec.decode(memoryview(frame), 3, SIZE)
    except BadFrame as error:
        words = str(error).split()
        return " ".join(word for word in words if not any(c.isdigit() for c in word))
    kind = f"code {frame[8]}"
    count = SIZE if changes.positions is None else len(changes.positions)
    return f"{kind} {changes.width} {count.bit_length()}"


def test_mutated_frames_are_refused_or_stay_inside() -> None:
    ways = campaign(NUMPY, None, 1500, 1)
    assert len(ways) > 25
    assert {way.split()[1] for way in ways if way.startswith("code ")} >= {"1", "2", "3", "4"}
    assert any("not a complete code" in way for way in ways)


@pytest.mark.timeout(300)  # it compiles
@pytest.mark.slow
def test_both_kernels_decide_the_same_on_mutated_frames() -> None:
    pytest.importorskip("numba")
    from astraflow_plugin_delta.coding.kernel_numba import NumbaKernel

    assert len(campaign(Codec(NumbaKernel()), NUMPY, 12_000, 2)) > 20


@pytest.mark.slow
@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_no_frame_by_accident(data: bytes) -> None:
    apply_guarded(NUMPY, data)
    apply_guarded(NUMPY, resealed(data))


@given(
    st.sampled_from([STEPS, RAW, HUFFMAN]),
    st.sampled_from([1, 2, 4]),
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(0, 30), min_size=6, max_size=6),
    st.binary(max_size=120),
)
def test_heads_that_lie_are_refused_or_stay_inside(
    code: int, width: int, huge: int, small: list[int], payload: bytes
) -> None:
    for changed in (huge, small[0]):
        head = Head(code, width, SIZE // width, changed, *small[1:], huge, small[0])
        apply_guarded(NUMPY, seal(head, payload, 3))


@given(
    st.sampled_from([1, 2, 4]),
    st.lists(st.integers(0, 15), min_size=2, max_size=240),
    st.lists(st.integers(0, 15), min_size=2, max_size=240),
    st.lists(st.integers(0, 90), min_size=4, max_size=4),
    st.binary(max_size=150),
)
def test_tables_of_code_lengths_that_lie_are_refused_or_stay_inside(
    width: int, gaps: list[int], steps: list[int], counts: list[int], payload: bytes
) -> None:
    whole = [[1, 1], [1, 2, 2], [2, 2, 2, 0, 2]]
    for first, second in ((gaps, steps), (whole[len(gaps) % 3], whole[len(steps) % 3])):
        tables = b"".join(
            bytes(low | high << 4 for low, high in zip(each[::2], [*each[1::2], 0], strict=False))
            for each in (first, second)
        )
        head = Head(
            HUFFMAN, width, SIZE // width, counts[0], 0, len(first), len(second), 0, *counts[1:]
        )
        apply_guarded(NUMPY, seal(head, tables + payload, 3))


def test_a_frame_that_unfolds_beyond_its_block_is_refused_before_it_does(
    within: Callable[[Callable[[], Any], float], Any],
) -> None:
    zeros = bytes(64 << 20)
    bomb = seal(Head(STEPS, 1, SIZE, SIZE, gap_bytes=len(zeros)), zeros, 3)
    assert within(lambda: apply_guarded(NUMPY, bomb), 20) is None


HEADER = LinkHead("solver", 1, "a" * 32, 2, "b" * 32, 6 << 20, 2 << 20, b"")


@given(st.data())
def test_damaged_links_and_lists_are_refused_or_say_the_same(data: st.DataObject) -> None:
    link = pack_link(HEADER, [(0, b"frame"), (2, b"another"), (2, b"third")])
    entry = entry_of(HEADER, link)
    for whole, read in (
        (link, lambda raw: open_link(memoryview(raw), entry).frames.keys()),
        (pack_index([entry]), open_index),
    ):
        at = data.draw(st.integers(0, len(whole) - 1))
        damaged = bytearray(whole)
        damaged[at] ^= 1 << data.draw(st.integers(0, 7))
        for raw in (bytes(damaged), whole[:at], data.draw(st.binary(max_size=100))):
            try:
                assert read(raw) in ({0, 2}, [entry])
            except BadLink:
                continue


def test_a_table_that_points_outside_is_refused() -> None:
    link = pack_link(HEADER, [(0, b"frame")])
    entry: LinkEntry = entry_of(HEADER, link)
    for raw in (link[:-1], link + b"x"):
        with pytest.raises(BadLink, match="frames end"):
            open_link(memoryview(raw), entry)


def rehashed(head: bytes) -> bytes:
    """A link with another head and a checksum that is right, so that the decoder has to look."""
    link = pack_link(HEADER, [(0, bytes(50)), (2, bytes(60))])
    _, length, _ = _START.unpack_from(link)
    frames = link[_START.size + length :]
    return _START.pack(b"AFDELTA1", len(head), xxhash.xxh3_64_intdigest(head)) + head + frames


def test_damaged_heads_and_lists_whose_checksum_is_right_are_refused_or_read() -> None:
    link = pack_link(HEADER, [(0, bytes(50)), (2, bytes(60))])
    entry, length = entry_of(HEADER, link), _START.unpack_from(link)[1]
    head = link[_START.size : _START.size + length]

    def read_head(packed: bytes) -> object:
        return open_link(memoryview(rehashed(packed)), entry)

    def read_list(body: bytes) -> object:
        return open_index(xxhash.xxh3_128_digest(body) + body)

    read_head(head)
    assert_refused_or_read(read_head, damaged([head]), BadLink)
    assert_refused_or_read(read_list, damaged([pack_index([entry])[16:]]), BadLink)
    assert issubclass(BadLink, WireError) and issubclass(BadFrame, WireError)
