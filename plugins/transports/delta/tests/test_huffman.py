"""Huffman codes against slow references, and lists of numbers there and back with either kernel."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow_plugin_delta.coding import huffman
from astraflow_plugin_delta.coding.frame import BadFrame
from astraflow_plugin_delta.coding.huffman_numpy import NumpyHuffman

NUMPY = NumpyHuffman()


def numba() -> Any:
    pytest.importorskip("numba")
    from astraflow_plugin_delta.coding.huffman_numba import NumbaHuffman

    return NumbaHuffman()


def shortest(counts: list[int], longest: int) -> int:
    """Bits of the best code whose codes are no longer: package-merge (Larmore and Hirschberg 1990)."""
    coins = [count for count in counts if count]
    packages: list[int] = []
    for _ in range(longest):
        level = sorted(coins + packages)
        packages = [a + b for a, b in zip(level[::2], level[1::2], strict=False)]
    return sum(packages[: len(coins) - 1])


def unlimited(counts: list[int]) -> int:
    """Bits of the code that Huffman's own algorithm gives."""
    heap, total = [count for count in counts if count], 0
    heapq.heapify(heap)
    while len(heap) > 1:
        merged = heapq.heappop(heap) + heapq.heappop(heap)
        total += merged
        heapq.heappush(heap, merged)
    return total


COUNTS = st.lists(
    st.one_of(st.integers(0, 3), st.integers(0, 1 << 20)), min_size=2, max_size=60
).filter(lambda counts: sum(map(bool, counts)) > 1)


@given(COUNTS)
def test_lengths_are_those_of_the_best_code_or_near_where_it_would_be_too_long(
    counts: list[int],
) -> None:
    array = np.array(counts + [0] * (huffman.SYMBOLS - len(counts)))
    lengths = huffman.code_lengths(array)
    assert huffman.complete(lengths) and ((lengths > 0) == (array > 0)).all()
    bits = int(array @ lengths)
    best = shortest(counts, huffman.LONGEST)
    assert best <= bits <= (best if best == unlimited(counts) else 1.02 * best)


@pytest.mark.parametrize("growth", [1.3, 1.618, 2, 3])
def test_steep_counts_have_codes_that_are_not_too_long(growth: float) -> None:
    counts = [int(growth**i) for i in range(min(60, int(20 / np.log2(growth))))]
    array = np.array(counts + [0] * (huffman.SYMBOLS - len(counts)))
    lengths = huffman.code_lengths(array)
    assert huffman.complete(lengths)
    assert array @ lengths <= 1.01 * shortest(counts, huffman.LONGEST)


def test_codes_are_canonical_and_the_table_finds_them() -> None:
    lengths = np.array([3, 0, 2, 3, 2, 2], np.uint8)
    codes = huffman.codes(lengths)
    written = [f"{codes[i]:0{n}b}"[::-1] for i, n in enumerate(lengths) if n]
    assert written == ["110", "00", "111", "01", "10"]
    table = huffman.decoding_table(lengths, codes)
    for symbol, length in enumerate(lengths):
        if length:
            found = table[np.arange(1 << huffman.LONGEST) % (1 << length) == codes[symbol]]
            assert (found == symbol + 256 * int(length)).all()


def test_classes_are_contiguous_and_cover_32_bits() -> None:
    first, raw = huffman.FIRST[0], huffman.RAW_BITS[0]
    assert first[0] == 1 and (first[:-1] + (1 << raw[:-1]) == first[1:]).all()
    assert first[-1] + (1 << raw[-1]) == 1 << 32
    for by_sign, plain in ((huffman.FIRST[1], first), (huffman.RAW_BITS[1], raw)):
        assert (by_sign[::2] == plain).all() and (by_sign[1::2] == plain).all()
        assert len(by_sign) < huffman.SYMBOLS


NUMBERS = st.lists(
    st.one_of(st.integers(1, 5), st.integers(1, 200), st.integers(1, 2**31 - 1)),
    min_size=2, max_size=300,
).filter(lambda numbers: len({min(number, 64) for number in numbers}) > 1)  # fmt: skip


@given(NUMBERS, st.booleans())
def test_numbers_come_back_in_as_many_bits_as_said(numbers: list[int], signed: bool) -> None:
    check(NUMPY, np.array(numbers, np.int32), signed)


def check(kernel: Any, values: Any, signed: bool) -> tuple[bytes, bytes]:
    if signed:
        values = values * np.where(np.arange(len(values)) % 3, 1, -1).astype(np.int32)
    counts = kernel.histogram(values, signed)
    lengths = kernel.code_lengths(counts)
    codes, low = kernel.pack_symbols(values, signed, lengths)
    bits, raw = huffman.bits(counts, lengths, signed)
    assert (len(codes), len(low)) == ((bits + 7) // 8, (raw + 7) // 8)
    sent = huffman.entries(lengths)
    read = huffman.unpack_lengths(huffman.pack_lengths(lengths), sent, signed)
    assert (read == lengths).all()
    assert (kernel.unpack_symbols(codes, low, len(values), signed, read) == values).all()
    for torn in ((codes[:-1], low), (codes, low[:-1]), (np.append(codes, codes[:1]), low)):
        if sum(map(len, torn)) != len(codes) + len(low):
            with pytest.raises(BadFrame):
                kernel.unpack_symbols(*torn, len(values), signed, read)
    return bytes(codes), bytes(low)


@pytest.mark.timeout(300)  # it compiles
@pytest.mark.slow
def test_both_kernels_write_the_same_lists() -> None:
    compiled = numba()
    generator = np.random.default_rng(0)
    for count in (2, 63, 5000, 20_000):
        values = generator.geometric(0.02, count).astype(np.int32)
        values[::7] = generator.integers(1, 1 << 31, len(values[::7]))
        values[:2] = 1, 70
        for signed in (False, True):
            assert check(compiled, values, signed) == check(NUMPY, values, signed)
            sample = values[: huffman.SAMPLE]
            assert compiled.estimate(sample, signed) == NUMPY.estimate(sample, signed)
            counts = compiled.histogram(values, signed)
            assert (counts == NUMPY.histogram(values, signed)).all()


def test_numbers_at_the_ends_of_the_range_come_back() -> None:
    ends = np.array([1, -1, 63, 64, -64, 2**31 - 1, -(2**31)], np.int32)
    lengths = NUMPY.code_lengths(NUMPY.histogram(ends, True))
    streams = NUMPY.pack_symbols(ends, True, lengths)
    assert (NUMPY.unpack_symbols(*streams, len(ends), True, lengths) == ends).all()


@pytest.mark.parametrize(
    "lengths",
    [[], [0, 0], [1], [1, 0], [1, 2], [1, 1, 1], [2, 2, 2], [13] * 2 + [1], [1] + [0] * 238 + [1]],
    ids=str,
)
def test_a_table_that_is_no_complete_code_is_refused(lengths: list[int]) -> None:
    padded = np.array([*lengths, *[0] * (len(lengths) % 2)], np.uint8)
    with pytest.raises(BadFrame, match="not a complete code"):
        huffman.unpack_lengths(padded[::2] | padded[1::2] << 4, len(lengths), True)
