"""Fetches the blocks of one version from one publisher, each verified on arrival."""

from __future__ import annotations

import errno
import os
import threading
from collections import Counter
from contextlib import ExitStack
from typing import Protocol

import xxhash

from astraflow_core.errors import WeightsError
from astraflow_core.types import Manifest
from astraflow_weights.connection import Connection
from astraflow_weights.failures import BAD_ATTEMPTS, PublisherFailed, without
from astraflow_weights.fetch.client import VersionClient
from astraflow_weights.fetch.recycled_file import OpenFile
from astraflow_weights.fetch.transfer import LARGEST_PIECE, BlockTransfer, Piece


class Blocks(Protocol):
    """Indices of blocks: a set, or :class:`astraflow_weights.arrivals.Arrivals`."""

    def __contains__(self, block: object, /) -> bool: ...

    def add(self, block: int, /) -> None: ...


def download(client: VersionClient, manifest: Manifest, opened: OpenFile, done: Blocks) -> None:
    """Write those blocks of the version into the file ``opened`` that are not in ``done``, and add each when
    it is verified and written; ``done`` outlives a failure, so that another publisher can continue.

    Raises :class:`PublisherFailed`, or :class:`WeightsError` at the deadline, if cancelled, or if the file
    cannot be written.
    """
    with ExitStack() as stack:
        place = None
        if opened.mapping is not None and not client.encrypted:
            place = stack.enter_context(memoryview(opened.mapping))
        sink = _BlockSink(client, manifest, opened.number, place, done)
        try:
            BlockTransfer(client, "data", sink).run(sink.missing((0, manifest.size)))
        except PublisherFailed as error:
            missing = [block for block in range(len(manifest.blocks)) if block not in done]
            raise without(error, missing) from error


class _BlockSink:
    """Blocks are received and hashed in their ``place`` in the mapped file of an earlier version, by the kernel, for which a
    full disk of a copy-on-write file system is an error; for this process, which decrypts, it would be a signal. Without a place
    each is received and hashed in a buffer that stays in the cache, and written when it is right: that costs less than a mapping
    of fresh pages."""

    def __init__(
        self,
        client: VersionClient,
        manifest: Manifest,
        file: int,
        place: memoryview | None,
        done: Blocks,
    ) -> None:
        self._client, self._manifest = client, manifest
        self._file, self._place, self._done = file, place, done
        self._bad: Counter[int] = Counter()
        self._buffers: list[memoryview] = []
        self._broken: dict[int, tuple[memoryview | None, int]] = {}
        self._lock = threading.Lock()

    def receive(self, connection: Connection, piece: Piece) -> None:
        """See :class:`astraflow_weights.fetch.transfer.Sink`."""
        size = self._manifest.block_size
        for block in range(piece[0] // size, -(-piece[1] // size)):
            with self._lock:
                buffer, position = self._broken.pop(block, (None, 0))
            if (
                self._place is not None
            ):  # no view of the mapping may outlive this call, or it could not be closed
                with self._place[block * size : (block + 1) * size] as part:
                    self._receive_block(connection, block, part, position)
                continue
            buffer = buffer or self._buffer()
            self._receive_block(connection, block, buffer, position)
            with self._lock:
                self._buffers.append(buffer)

    def missing(self, piece: Piece) -> list[Piece]:
        """Runs of blocks, short enough that every stream has work and a broken one costs little. The first
        may begin within a block, where a connection broke."""
        size = self._manifest.block_size
        blocks = range(piece[0] // size, -(-piece[1] // size))
        longest = max(min(len(blocks) // (self._client.width() * 8), LARGEST_PIECE // size), 1)
        runs: list[Piece] = []
        with self._lock:
            for block in blocks:
                if block in self._done:
                    continue
                start = block * size + self._broken.get(block, (None, 0))[1]
                stop = min((block + 1) * size, self._manifest.size)
                if runs and runs[-1][1] == start and stop - runs[-1][0] <= longest * size:
                    runs[-1] = (runs[-1][0], stop)
                else:
                    runs.append((start, stop))
        return runs

    def _buffer(self) -> memoryview:
        """A buffer that is large enough for any block."""
        with self._lock:
            if self._buffers:
                return self._buffers.pop()
        return memoryview(bytearray(min(self._manifest.block_size, self._manifest.size)))

    def _receive_block(
        self, connection: Connection, block: int, buffer: memoryview, position: int
    ) -> None:
        size = self._manifest.block_size
        began, length = position, min(size, self._manifest.size - block * size)
        try:
            if self._place is not None and (early := connection.read_ahead(length - position)):
                self._store(early, block * size + position)
                position += len(early)
            while position < length:
                with buffer[position:length] as rest:
                    position += connection.read_some(rest)
        except OSError as error:
            if error.errno == errno.EFAULT:
                raise _unwritten(error) from error
            raise
        finally:
            self._client.count(position - began)
            if position < length:
                kept = buffer if self._place is None else None
                with self._lock:
                    self._broken[block] = (kept, position)
        with buffer[:length] as view:
            self._verify(block, view)

    def _verify(self, block: int, view: memoryview) -> None:
        if xxhash.xxh3_128_digest(view) == self._manifest.blocks[block]:
            if self._place is None:
                self._store(view, block * self._manifest.block_size)
            with self._lock:
                self._done.add(block)
            self._client.succeeded()
            return
        with self._lock:
            self._bad[block] += 1
            attempts = self._bad[block]
        if attempts == BAD_ATTEMPTS:
            raise PublisherFailed(f"block {block} arrived corrupted {attempts} times")

    def _store(self, view: memoryview | bytes, offset: int) -> None:
        position = 0
        while position < len(view):
            try:
                position += os.pwrite(self._file, view[position:], offset + position)
            except OSError as error:
                raise _unwritten(error) from error


def _unwritten(error: OSError) -> WeightsError:
    return WeightsError(f"writing a block to disk failed: {error.strerror}")
