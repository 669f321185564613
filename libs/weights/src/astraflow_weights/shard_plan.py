"""Which rank serves which block of a version whose tensors lie in slices on several ranks, and which bytes ranks exchange.

The file of the version, its blocks and so its digest are those of a publisher that has everything. A rank holds
pieces of the file; a block that pieces of several ranks reach into is served whole by one of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import msgspec

from astraflow_core.errors import WeightsError
from astraflow_core.types import TensorSpec
from astraflow_core.types.weights import DTYPE_BYTES
from astraflow_wire.model_files.tensor_file import lay_out

MAX_PARCEL = 32 << 20
"""Bytes from another rank that are in memory at once in addition to what a rank serves."""

Run = tuple[int, int]
"""A first number and the one after the last."""


class ElementRange(msgspec.Struct, frozen=True, array_like=True):
    """The elements ``start`` to ``stop`` of a tensor, which a rank says that it exports."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Fragment:
    """Bytes ``start`` to ``stop`` of the file, within one block. ``giver`` holds them, ``taker`` serves the block."""

    start: int
    stop: int
    giver: int
    taker: int


@dataclass(frozen=True, slots=True)
class Parcel:
    """What ``giver`` gives to ``taker`` at once: ``fragments`` one after the other, ``size`` bytes from ``offset``
    on in its outbox."""

    giver: int
    taker: int
    fragments: tuple[Fragment, ...]
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Plan:
    """``header`` and ``specs`` of the file of ``size`` bytes; ``owners`` has the rank that serves each block,
    ``fragments`` every byte of the file once, in order. The same on every rank."""

    header: bytes
    specs: tuple[TensorSpec, ...]
    size: int
    block_size: int
    owners: tuple[int, ...]
    fragments: tuple[Fragment, ...]

    def runs(self, rank: int) -> tuple[Run, ...]:
        """Runs of blocks that ``rank`` serves."""
        runs, block = [], 0
        for owner, blocks in groupby(self.owners):
            count = len(list(blocks))
            if owner == rank:
                runs.append((block, block + count))
            block += count
        return tuple(runs)

    def parcels(self, giver: int) -> tuple[Parcel, ...]:
        """All that ``giver`` gives to others, in the order in which it lies in its outbox."""
        given = sorted(
            (f for f in self.fragments if f.giver == giver != f.taker),
            key=lambda fragment: (fragment.taker, fragment.start),
        )
        parcels: list[Parcel] = []
        offset = 0
        for taker, fragments in groupby(given, lambda fragment: fragment.taker):
            for together in _gathered(fragments):
                size = sum(fragment.stop - fragment.start for fragment in together)
                parcels.append(Parcel(giver, taker, tuple(together), offset, size))
                offset += size
        return tuple(parcels)


def _gathered(fragments: Iterable[Fragment]) -> Iterator[list[Fragment]]:
    """Runs of at most :data:`MAX_PARCEL` bytes."""
    inside: list[Fragment] = []
    size = 0
    for fragment in fragments:
        if inside and size + fragment.stop - fragment.start > MAX_PARCEL:
            yield inside
            inside, size = [], 0
        inside.append(fragment)
        size += fragment.stop - fragment.start
    yield inside


def make_plan(who: str, said: Sequence[Sequence[ElementRange]], block_size: int) -> Plan:
    """The plan for what each rank reported, the same on every rank.

    Raises :class:`WeightsError` unless together they export every element of every tensor once. The header is
    rank 0's.
    """
    tensors: dict[str, tuple[str, tuple[int, ...], int]] = {}
    pieces: dict[str, list[tuple[int, int, int]]] = {}
    for rank, places in enumerate(said):
        for place in places:
            first = tensors.setdefault(place.name, (place.dtype, place.shape, rank))
            if first[:2] != (place.dtype, place.shape):
                raise WeightsError(
                    f"{who}: tensor {place.name!r} is {first[0]} {list(first[1])} on rank {first[2]} and "
                    f"{place.dtype} {list(place.shape)} on rank {rank}; ranks export slices of the same tensors"
                )
            found = pieces.setdefault(place.name, [])
            if place.start < place.stop:
                found.append((place.start, place.stop, rank))
    header, specs = lay_out((name, dtype, shape) for name, (dtype, shape, _) in tensors.items())
    held = [(0, len(header), 0)]
    for spec in specs:
        width = DTYPE_BYTES[spec.dtype]
        for start, stop, rank in _without_overlap(who, spec, sorted(pieces[spec.name])):
            held.append((spec.start + start * width, spec.start + stop * width, rank))
    size = held[-1][1]
    owners = _share_out(held, size, block_size, len(said))
    fragments = tuple(
        Fragment(start, stop, rank, owners[start // block_size])
        for start, stop, rank in _within_blocks(held, block_size)
    )
    return Plan(header, specs, size, block_size, tuple(owners), fragments)


def _without_overlap(
    who: str, spec: TensorSpec, pieces: list[tuple[int, int, int]]
) -> list[tuple[int, int, int]]:
    end, before = 0, -1
    total = math.prod(spec.shape)
    for start, stop, rank in [*pieces, (total, total, -1)]:
        if start > end:
            raise WeightsError(
                f"{who}: no rank exports elements {end} to {start - 1} of tensor {spec.name!r} "
                f"{list(spec.shape)}; together the ranks must export every element once"
            )
        if start < end or stop > total:
            raise WeightsError(
                f"{who}: elements {start} to {min(stop, end) - 1} of tensor {spec.name!r} {list(spec.shape)} come "
                f"from rank {before} and from rank {rank}, or lie beyond it; each element must come once"
            )
        end, before = stop, rank
    return pieces


def _share_out(
    held: Sequence[tuple[int, int, int]], size: int, block_size: int, ranks: int
) -> list[int]:
    """Who serves each block, so that no rank serves a block more than it holds: of those that hold some of it,
    the one that has been given least for what it holds, unless that would be too much for all of them."""
    credit = [0] * ranks
    owners = []
    parts = groupby(_within_blocks(held, block_size), lambda part: part[0] // block_size)
    for block, part in parts:
        holders = []
        for start, stop, rank in part:
            credit[rank] += stop - start
            holders.append(rank)
        owner = max(sorted(set(holders)), key=lambda rank: credit[rank])
        if credit[owner] <= 0:
            owner = max(range(ranks), key=lambda rank: credit[rank])
        credit[owner] -= min(block_size, size - block * block_size)
        owners.append(owner)
    return owners


def _within_blocks(
    held: Sequence[tuple[int, int, int]], block_size: int
) -> Iterator[tuple[int, int, int]]:
    for start, stop, rank in held:
        while start < stop:
            end = min(stop, (start // block_size + 1) * block_size)
            yield start, end, rank
            start = end
