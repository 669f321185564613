"""Fetches the blocks of one version from one publisher, each verified on arrival."""

from __future__ import annotations

import os
import threading
from collections import Counter
from typing import Protocol

import xxhash

from astraflow_core.errors import WeightsError
from astraflow_core.types import Manifest
from astraflow_weights.connection import Connection
from astraflow_weights.failures import BAD_ATTEMPTS, PublisherFailed, without
from astraflow_weights.fetch.client import VersionClient
from astraflow_weights.fetch.transfer import LARGEST_PIECE, BlockTransfer, Piece


class Blocks(Protocol):
    """Indices of blocks: a set, or :class:`astraflow_weights.arrivals.Arrivals`."""

    def __contains__(self, block: object, /) -> bool: ...

    def add(self, block: int, /) -> None: ...


def download(client: VersionClient, manifest: Manifest, file: int, done: Blocks) -> None:
    """Write those blocks of the version into the open ``file`` that are not in ``done``, and add each when
    it is verified and written; ``done`` outlives a failure, so that another publisher can continue.

    Raises :class:`PublisherFailed`, or :class:`WeightsError` at the deadline, if cancelled, or if the file
    cannot be written.
    """
    sink = _BlockSink(client, manifest, file, done)
    try:
        BlockTransfer(client, "data", sink).run(sink.missing((0, manifest.size)))
    except PublisherFailed as error:
        missing = [block for block in range(len(manifest.blocks)) if block not in done]
        raise without(error, missing) from error


class _BlockSink:
    """A block is received and hashed in a buffer that stays in the cache, and written when it is right: that
    costs less than receiving into a mapping of fresh pages, and a full disk is an error, not a signal."""

    def __init__(self, client: VersionClient, manifest: Manifest, file: int, done: Blocks) -> None:
        self._client, self._manifest = client, manifest
        self._file, self._done = file, done
        self._bad: Counter[int] = Counter()
        self._buffers: list[memoryview] = []
        self._broken: dict[int, tuple[memoryview, int]] = {}
        self._lock = threading.Lock()

    def receive(self, connection: Connection, piece: Piece) -> None:
        """See :class:`astraflow_weights.fetch.transfer.Sink`."""
        size = self._manifest.block_size
        for block in range(piece[0] // size, -(-piece[1] // size)):
            with self._lock:
                buffer, position = self._broken.pop(block, (None, 0))
                if buffer is None and self._buffers:
                    buffer = self._buffers.pop()
            if buffer is None:
                buffer = memoryview(bytearray(min(size, self._manifest.size)))
            self._receive_block(connection, block, buffer, position)

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

    def _receive_block(
        self, connection: Connection, block: int, buffer: memoryview, position: int
    ) -> None:
        size = self._manifest.block_size
        began, length = position, min(size, self._manifest.size - block * size)
        try:
            while position < length:
                with buffer[position:length] as rest:
                    position += connection.read_some(rest)
        finally:
            self._client.count(position - began)
            if position < length:
                with self._lock:
                    self._broken[block] = (buffer, position)
        with buffer[:length] as view:
            self._verify(block, view)
        with self._lock:
            self._buffers.append(buffer)

    def _verify(self, block: int, view: memoryview) -> None:
        if xxhash.xxh3_128_digest(view) == self._manifest.blocks[block]:
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

    def _store(self, view: memoryview, offset: int) -> None:
        position = 0
        while position < len(view):
            try:
                position += os.pwrite(self._file, view[position:], offset + position)
            except OSError as error:
                raise WeightsError(f"writing a block to disk failed: {error.strerror}") from error
