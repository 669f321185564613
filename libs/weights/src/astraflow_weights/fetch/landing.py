"""Where the blocks of one version land: verified, written once, counted when they are bad.

For transports that bring blocks by other ways than HTTP; :class:`BlockReceiver` is their half of the RaaS.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import xxhash

from astraflow_core.errors import WeightsError, WireError
from astraflow_core.types import Announcement, Manifest, WeightSource
from astraflow_weights.announced import decode_manifest
from astraflow_weights.failures import BAD_ATTEMPTS, PublisherFailed, without
from astraflow_wire.host.private_folder import PrivateFolder
from astraflow_wire.model_files.tensor_file import read_specs

CLOSE_S = 2.0
_NAME = re.compile(r"[a-z][a-z0-9_]*")


class BlockSource(Protocol):
    """One publisher during one fetch."""

    def manifest(self, landing: BlockFile) -> bytes:
        """The announced version's manifest, in msgpack; asked for again if it is damaged. :class:`WireError` if that
        shows at once."""

    def deliver(self, manifest: Manifest, landing: BlockFile) -> None:
        """Land every missing block. Raises :class:`PublisherFailed` if this publisher cannot; calls
        :meth:`BlockFile.time_left` often while it waits."""

    def close(self) -> None:
        """Release the publisher."""


class BlockFile:
    """The file of a version that is being fetched. Threads may share it."""

    def __init__(self, file: int, deadline: float, closed: threading.Event) -> None:
        self._file, self._deadline, self._closed = file, deadline, closed
        self._lock = threading.Lock()
        self._manifest: Manifest | None = None
        self._missing: set[int] = set()
        self._bad: Counter[int] = Counter()
        self._ended = False
        self.received = 0

    def time_left(self) -> float:
        """Seconds until the deadline; raises :class:`WeightsError` when it has passed or the receiver was
        closed."""
        if self._closed.is_set():
            raise WeightsError("the receiver was closed")
        left = self._deadline - time.monotonic()
        if left <= 0:
            done = len(self._manifest.blocks) - len(self._missing) if self._manifest else 0
            raise WeightsError(f"the deadline passed, {done} blocks were verified")
        return left

    def begin(self, manifest: Manifest) -> None:
        """Blocks of this manifest may land; those that landed from another publisher stay."""
        if self._manifest is None:
            os.truncate(self._file, manifest.size)
            self._missing = set(range(len(manifest.blocks)))
        self._manifest = manifest
        self._bad.clear()

    def missing(self) -> list[int]:
        """Blocks that have not landed, in order."""
        with self._lock:
            return sorted(self._missing)

    def land(self, block: int, data: bytes | memoryview) -> bool:
        """Verify and write a block; False if it is wrong and has to come again. Raises
        :class:`PublisherFailed` when it was wrong too often, :class:`WeightsError` if it cannot be written."""
        manifest = self._manifest
        assert manifest is not None
        good = xxhash.xxh3_128_digest(data) == manifest.blocks[block]
        with self._lock:
            self.received += len(data)
            if self._ended or block not in self._missing:
                return True
            if not good:
                self._bad[block] += 1
                if self._bad[block] >= BAD_ATTEMPTS:
                    raise PublisherFailed(
                        f"block {block} arrived corrupted {self._bad[block]} times"
                    )
                return False
            self._write(data, block * manifest.block_size)
            self._missing.discard(block)
        return True

    def end(self) -> None:
        """End writing; later writes of threads are ignored."""
        with self._lock:
            self._ended = True

    def _write(self, data: bytes | memoryview, offset: int) -> None:
        position = 0
        while position < len(data):
            try:
                position += os.pwrite(self._file, data[position:], offset + position)
            except OSError as error:
                raise WeightsError(f"writing a block to disk failed: {error.strerror}") from error


class BlockReceiver:
    """Fetches versions from sources that ``connect(announcement, endpoint)`` makes; see
    :class:`astraflow_core.protocols.transport.Receiver`. Any number of fetches may run at once."""

    def __init__(
        self, directory: Path, connect: Callable[[Announcement, str], BlockSource]
    ) -> None:
        self.folder = PrivateFolder(directory, "received-")
        self._connect = connect
        self._count = itertools.count()
        self._closed = threading.Event()
        self._idle = threading.Condition()
        self._fetches = 0

    def fetch(self, announcement: Announcement, deadline_s: float) -> WeightSource:
        """Fetch and verify a version, from each endpoint in turn until one has delivered the rest."""
        began = time.monotonic()
        who = f"version {announcement.version} of policy {announcement.policy!r}"
        if not _NAME.fullmatch(announcement.policy) or announcement.version < 0:
            raise WeightsError(f"malformed announcement: {who}")
        with self._idle:
            if self._closed.is_set():
                raise WeightsError("the receiver was closed")
            self._fetches += 1
        stem = f"{announcement.policy}-{announcement.version}-{next(self._count)}"
        partial = self.folder.path / f"{stem}.part"
        try:
            with partial.open("x+b") as file:
                landing = BlockFile(file.fileno(), began + deadline_s, self._closed)
                try:
                    manifest = self._fill(announcement, landing, file.fileno(), who)
                finally:
                    landing.end()
            path = partial.rename(partial.with_name(f"{stem}.safetensors"))
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise WeightsError(f"{who} cannot be stored in {self.folder.path}: {error}") from error
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        finally:
            with self._idle:
                self._fetches -= 1
                self._idle.notify_all()
        return WeightSource(
            policy=announcement.policy,
            version=announcement.version,
            path=path,
            digest=announcement.digest,
            bytes_received=landing.received,
            seconds=time.monotonic() - began,
            kind=manifest.kind,
            base=manifest.base,
        )

    def release(self, source: WeightSource) -> None:
        """Delete the source's file; processes that have it open may keep reading it."""
        if source.path.parent != self.folder.path:
            raise ValueError(f"{source.path} was not returned by this receiver")
        source.path.unlink(missing_ok=True)

    def close(self) -> None:
        """End running fetches and delete every file; closing twice is allowed."""
        with self._idle:
            self._closed.set()
            self._idle.wait_for(lambda: not self._fetches, CLOSE_S)
        self.folder.close()

    def _fill(self, told: Announcement, landing: BlockFile, file: int, who: str) -> Manifest:
        problems: list[str] = []
        for endpoint in told.endpoints:
            try:
                landing.time_left()
                source = self._connect(told, endpoint)
                try:
                    manifest = _manifest(source, landing, told)
                    landing.begin(manifest)
                    try:
                        source.deliver(manifest, landing)
                    except PublisherFailed as error:
                        raise without(error, landing.missing()) from error
                finally:
                    source.close()
                with (
                    mmap.mmap(file, 0, prot=mmap.PROT_READ) as mapping,
                    memoryview(mapping) as all_,
                ):
                    if landing.missing() or read_specs(all_) != manifest.tensors:
                        raise PublisherFailed("its manifest names other tensors than its file")
                return manifest
            except (PublisherFailed, WireError) as error:
                problems.append(f"{endpoint}: {error}")
            except WeightsError as error:
                problems.append(f"{endpoint}: {error}")
                break
        reasons = "; ".join(problems) or "it was announced without an address"
        raise WeightsError(f"{who} could not be fetched: {reasons}")


def _manifest(source: BlockSource, landing: BlockFile, told: Announcement) -> Manifest:
    """Asked for again, as blocks are, if it comes damaged."""
    for _ in range(BAD_ATTEMPTS - 1):
        with contextlib.suppress(WireError):
            return decode_manifest(source.manifest(landing), told)
    return decode_manifest(source.manifest(landing), told)
