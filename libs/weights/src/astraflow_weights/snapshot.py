"""Takes a snapshot of a model: one copy of each tensor into one buffer, hashed while it is in cache."""

from __future__ import annotations

import contextlib
import mmap
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import xxhash

from astraflow_core.errors import WeightsError
from astraflow_core.types import ExportedTensor, Manifest, TensorSlice, TensorSpec
from astraflow_wire.model_files.tensor_file import lay_out

BLOCK_SIZE = 2 << 20
"""Bytes of a block; the last one of a version may be shorter."""


def check_follows(policy: str, version: int, newest: int) -> None:
    """Raises :class:`WeightsError` unless ``version`` is above ``newest``, the last that was published."""
    if version <= newest:
        raise WeightsError(
            f"policy {policy!r}: version {version} cannot follow version {newest}; version numbers are never reused"
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A version as it is served: ``data`` the bytes of its safetensors file (a memoryview, or a
    :class:`astraflow_weights.block_range.BlockRange` with some of them), ``encoded`` the manifest in msgpack."""

    manifest: Manifest
    encoded: bytes
    data: Any


class Snapshotter:
    """Makes snapshots of one policy.

    Buffers are anonymous memory: no file system holds them, so nothing is left behind however the
    process ends. All versions have the tensors of the first one, and ``newest`` is the last that was taken.
    ``on_block`` gets each block's index and bytes as soon as it is complete.
    """

    def __init__(
        self, policy: str, on_block: Callable[[int, memoryview], None] | None = None
    ) -> None:
        self._policy = policy
        self._on_block = on_block
        self._layout: tuple[bytes, tuple[TensorSpec, ...]] | None = None
        self._spare: memoryview | None = None
        self.newest = -1

    def take(
        self,
        version: int,
        tensors: Iterable[ExportedTensor],
        derives_from: int | None,
        base: str | None = None,
    ) -> Snapshot:
        """Copy ``tensors``, in any order, into a buffer; with the digest of a ``base`` they are an adapter.
        Raises :class:`WeightsError` if they are not those of the earlier versions, or ``version`` is not
        above all earlier ones; nothing is kept then."""
        check_follows(self._policy, version, self.newest)
        if self._layout is None:
            tensors = self._learn_layout(tensors)
        assert self._layout is not None
        header, specs = self._layout
        buffer = self.allocate(specs[-1].end if specs else len(header))
        try:
            digests = self._fill(buffer, header, specs, tensors)
        except BaseException:
            self.recycle(buffer)
            raise
        manifest = Manifest(
            policy=self._policy,
            version=version,
            kind="full" if base is None else "adapter",
            size=len(buffer),
            block_size=BLOCK_SIZE,
            tensors=specs,
            blocks=digests,
            digest=xxhash.xxh3_128_hexdigest(b"".join(digests)),
            derives_from=derives_from,
            base=base,
        )
        self.newest = version
        return Snapshot(manifest, msgspec.msgpack.encode(manifest), buffer)

    def recycle(self, buffer: memoryview) -> None:
        """Take back the buffer of a dropped version; touching fresh pages costs three times the copy."""
        if self._spare is None and self._layout is not None:
            self._spare = buffer
        else:
            discard(buffer)

    def close(self) -> None:
        """Free the buffer in reserve."""
        if self._spare is not None:
            discard(self._spare)
            self._spare = None

    def allocate(self, size: int) -> memoryview:
        """A buffer of ``size`` bytes for a version. A transport that keeps versions elsewhere overrides this
        and :meth:`recycle`."""
        spare, self._spare = self._spare, None
        if spare is not None and len(spare) == size:
            return spare
        if spare is not None:
            discard(spare)
        return memoryview(_anonymous(size))

    def _learn_layout(self, tensors: Iterable[ExportedTensor]) -> Iterator[ExportedTensor]:
        """The header comes first and names every tensor, so the first version is collected before it is
        laid out; each collected tensor is freed as soon as it has been taken."""
        collected = deque(replace(tensor, data=bytes_of(tensor).tobytes()) for tensor in tensors)
        self._layout = lay_out((t.name, t.dtype, tuple(t.shape)) for t in collected)

        def drain() -> Iterator[ExportedTensor]:
            while collected:
                yield collected.popleft()

        return drain()

    def _fill(
        self,
        buffer: memoryview,
        header: bytes,
        specs: tuple[TensorSpec, ...],
        tensors: Iterable[ExportedTensor],
    ) -> tuple[bytes, ...]:
        blocks = -(-len(buffer) // BLOCK_SIZE)
        digests = [b""] * blocks
        missing = [BLOCK_SIZE] * blocks
        missing[-1] = len(buffer) - (blocks - 1) * BLOCK_SIZE

        def copy(start: int, data: memoryview) -> None:
            position, end = start, start + len(data)
            while position < end:
                block = position // BLOCK_SIZE
                stop = min(end, (block + 1) * BLOCK_SIZE)
                buffer[position:stop] = data[position - start : stop - start]
                missing[block] -= stop - position
                if not missing[block]:
                    with buffer[block * BLOCK_SIZE : (block + 1) * BLOCK_SIZE] as whole:
                        digests[block] = xxhash.xxh3_128_digest(whole)
                        if self._on_block is not None:
                            self._on_block(block, whole)
                position = stop

        copy(0, memoryview(header))
        wanted = {spec.name: spec for spec in specs}
        for tensor in tensors:
            spec = wanted.pop(tensor.name, None)
            got = f"{tensor.dtype} {list(tensor.shape)}"
            if spec is None:
                raise self._unlike_before(f"unexpected or repeated tensor {tensor.name!r} ({got})")
            if (tensor.dtype, tuple(tensor.shape)) != (spec.dtype, spec.shape):
                raise self._unlike_before(
                    f"tensor {tensor.name!r} is {got}, was {spec.dtype} {list(spec.shape)}"
                )
            data = bytes_of(tensor)
            if len(data) != spec.end - spec.start:
                raise self._unlike_before(
                    f"tensor {tensor.name!r} ({got}) has {len(data)} bytes, "
                    f"expected {spec.end - spec.start}"
                )
            copy(spec.start, data)
        if wanted:
            raise self._unlike_before(f"missing tensors: {', '.join(sorted(wanted)[:5])}")
        return tuple(digests)

    def _unlike_before(self, what: str) -> WeightsError:
        return WeightsError(
            f"cannot publish policy {self._policy!r}: {what}; every version must have the same tensors"
        )


def _anonymous(size: int) -> mmap.mmap:
    """Memory in huge pages where there are any: filling it again costs a quarter, comparing two half as much."""
    huge: int | None = getattr(mmap, "MADV_HUGEPAGE", None)
    if huge is None:
        return mmap.mmap(-1, size)
    made = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them
        made.madvise(huge)
    return made


def discard(buffer: memoryview) -> None:
    """Give the memory of a buffer back."""
    mapping = buffer.obj
    assert isinstance(mapping, mmap.mmap)
    buffer.release()
    mapping.close()


def bytes_of(tensor: ExportedTensor | TensorSlice) -> memoryview:
    """Its data as single bytes."""
    view = memoryview(tensor.data)
    if not view.nbytes:  # memoryview refuses to cast a shape with zeros
        return memoryview(b"")
    return view.cast("B")
