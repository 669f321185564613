"""Takes a snapshot of what one rank exports: what it serves into its part, what others serve into an outbox."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator

import xxhash

from astraflow_core.errors import WeightsError
from astraflow_core.types import TensorSlice
from astraflow_core.types.weights import DTYPE_BYTES
from astraflow_weights.block_range import BlockRange
from astraflow_weights.shard_plan import ElementRange, Parcel, Plan
from astraflow_weights.snapshot import bytes_of


def places_of(slices: Iterable[TensorSlice]) -> Iterator[ElementRange]:
    """Which elements they are."""
    for part in slices:
        count = len(bytes_of(part)) // DTYPE_BYTES[part.dtype]
        yield ElementRange(part.name, part.dtype, tuple(part.shape), part.start, part.start + count)


class ShardSnapshotter:
    """Of ``rank``, which said that it exports ``places``. ``on_block`` gets each block that it serves as soon as it
    is complete. ``allocated`` counts the bytes of buffers that are held (parts, outbox and parcel), ``peak`` the
    most there were."""

    def __init__(
        self,
        who: str,
        plan: Plan,
        rank: int,
        places: Iterable[ElementRange],
        on_block: Callable[[int, memoryview], None] | None,
    ) -> None:
        self._who, self._plan, self._rank = who, plan, rank
        self._places = {(place.name, place.start): place for place in places}
        self._specs = {spec.name: spec for spec in plan.specs}
        self._on_block = on_block
        self._runs = plan.runs(rank)
        self.blocks = [block for first, last in self._runs for block in range(first, last)]
        self._outgoing: dict[int, int] = {}
        self.outbox_size = 0
        self.parcels = plan.parcels(rank)
        for parcel in self.parcels:
            for fragment in parcel.fragments:
                self._outgoing[fragment.start] = self.outbox_size
                self.outbox_size += fragment.stop - fragment.start
        self.allocated = 0
        self.peak = 0
        self._spare: BlockRange | None = None
        self._missing: dict[int, int] = {}
        self._digests: dict[int, bytes] = {}

    def take(self, slices: Iterable[TensorSlice], part: BlockRange, outbox: memoryview) -> None:
        """Copy ``slices``, in any order. Raises :class:`WeightsError` if they are not those that were said."""
        size, block_size = self._plan.size, self._plan.block_size
        self._digests.clear()
        self._missing = {block: min(block_size, size - block * block_size) for block in self.blocks}
        if self._rank == 0:
            self._copy(0, memoryview(self._plan.header), part, outbox)
        wanted = dict(self._places)
        for given in slices:
            data = bytes_of(given)
            place = wanted.pop((given.name, given.start), None)
            count = len(data) // DTYPE_BYTES[given.dtype]
            got = ElementRange(
                given.name, given.dtype, tuple(given.shape), given.start, given.start + count
            )
            if place != got:
                raise WeightsError(
                    f"{self._who}: elements {got.start} to {got.stop - 1} of {got.name!r} ({got.dtype} "
                    f"{list(got.shape)}) were not among those of the first version, or occur twice; every "
                    "version must have the same slices"
                )
            start = self._specs[given.name].start + given.start * DTYPE_BYTES[given.dtype]
            self._copy(start, data, part, outbox)
        if missing := [place for place in wanted.values() if place.start < place.stop]:
            raise WeightsError(
                f"{self._who}: the export lacks elements of {', '.join(repr(p.name) for p in missing[:5])}"
            )

    def receive(self, parcel: Parcel, data: memoryview, part: BlockRange) -> None:
        """Take what another rank gave."""
        position = 0
        for fragment in parcel.fragments:
            size = fragment.stop - fragment.start
            self._fill(fragment.start, data[position : position + size], part)
            position += size

    def digests(self) -> bytes:
        """Of the blocks that this rank serves, in order, 16 bytes each."""
        if lacking := [block for block in self.blocks if block not in self._digests]:
            raise WeightsError(f"{self._who}: no rank sent all bytes of block {lacking[0]}")
        return b"".join(self._digests[block] for block in self.blocks)

    def new_part(self) -> BlockRange:
        """Memory for a version."""
        part, self._spare = self._spare, None
        if part is None:
            part = BlockRange(self._plan.size, self._plan.block_size, self._runs)
            self._count(part.nbytes)
        return part

    def new_buffer(self, size: int) -> memoryview:
        """Memory for an outbox or a parcel."""
        self._count(size)
        return memoryview(mmap.mmap(-1, size)) if size else memoryview(bytearray())

    def recycle(self, memory: memoryview | BlockRange) -> None:
        """Take memory back; one part stays in reserve, since touching fresh pages costs three times the copy."""
        if isinstance(memory, BlockRange) and self._spare is None:
            self._spare = memory
            return
        self.allocated -= memory.nbytes
        if isinstance(memory, BlockRange):
            memory.release()
            return
        mapping = memory.obj
        memory.release()
        if isinstance(mapping, mmap.mmap):
            mapping.close()

    def close(self) -> None:
        """Free the part in reserve."""
        if self._spare is not None:
            self.allocated -= self._spare.nbytes
            self._spare.release()
            self._spare = None

    def _count(self, size: int) -> None:
        self.allocated += size
        self.peak = max(self.peak, self.allocated)

    def _copy(self, start: int, data: memoryview, part: BlockRange, outbox: memoryview) -> None:
        """Cut at blocks; each piece goes to the part or into the outbox."""
        position, size = start, self._plan.block_size
        while position < start + len(data):
            stop = min(start + len(data), (position // size + 1) * size)
            with data[position - start : stop - start] as piece:
                if self._plan.owners[position // size] == self._rank:
                    self._fill(position, piece, part)
                else:
                    place = self._outgoing[position]
                    outbox[place : place + len(piece)] = piece
            position = stop

    def _fill(self, start: int, piece: memoryview, part: BlockRange) -> None:
        block = start // self._plan.block_size
        part[start : start + len(piece)] = piece
        self._missing[block] -= len(piece)
        if not self._missing[block]:
            first = block * self._plan.block_size
            with part[first : min(first + self._plan.block_size, self._plan.size)] as whole:
                self._digests[block] = xxhash.xxh3_128_digest(whole)
                if self._on_block is not None:
                    self._on_block(block, whole)
