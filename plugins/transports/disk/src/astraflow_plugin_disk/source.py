"""One publisher's folder as a source of blocks."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import deque
from uuid import uuid4

from astraflow_core.types import Announcement, Manifest
from astraflow_plugin_disk.config import DiskConfig
from astraflow_plugin_disk.places import (
    LEASE_S,
    READERS,
    blocks_per_part,
    manifest_name,
    part_name,
    verify,
)
from astraflow_plugin_disk.progress import read_progress
from astraflow_plugin_disk.store import ObjectStore, StoreError
from astraflow_weights.failures import PublisherFailed
from astraflow_weights.fetch.landing import BlockFile

FAILURES = 5
"""Failed reads of one part in a row after which the store is given up."""
POLL_S = 0.05
SLOWEST_POLL_S = 1.0
STILL_S = 60.0
"""How long a publisher that is writing a version may say nothing new, by the receiver's clock."""


class StoreSource:
    """Reads parts in parallel; a missing part may still appear while its manifest exists."""

    def __init__(
        self, announcement: Announcement, endpoint: str, token: str, config: DiskConfig
    ) -> None:
        inside = endpoint.startswith(f"{config.url}/") and ".." not in endpoint.split("/")
        if not inside:
            raise PublisherFailed(f"its address is outside of {config.url}")
        self._version, self._token, self._config = announcement.version, token, config
        self._store = ObjectStore(endpoint, config.options)
        self._lease = f"{READERS}/{uuid4().hex}"
        self._beats = 0
        self._renewed = 0.0
        self._part_mb = 0
        self._condition = threading.Condition()
        self._error: BaseException | None = None
        self._pending: deque[int] = deque()
        self._working = 0

    def manifest(self, landing: BlockFile) -> bytes:
        """The manifest, signed by a trainer of this run, once the publisher has written the version."""
        self._renew()
        said: tuple[tuple[int, ...], int] | None = None
        pause, patience = POLL_S, self._config.give_up_after_s
        until = time.monotonic() + patience
        data = self._manifest()
        while data is None:
            progress = read_progress(self._store)
            data = (
                self._manifest()
            )  # again: it comes before the progress that leaves its version out
            if data is not None:
                break
            if problem := progress.failed.get(self._version):
                raise PublisherFailed(f"its publisher could not write it: {problem}")
            coming = self._version in progress.coming
            news = (progress.coming, progress.objects) if coming else None
            if news != said:
                said, patience = news, STILL_S if coming else self._config.give_up_after_s
                until = time.monotonic() + patience
            if time.monotonic() > until:
                still = f" (it was being written, and nothing new arrived for {patience:.0f} s)"
                raise PublisherFailed(
                    f"version {self._version} has no manifest there: it was dropped, or publishing it never "
                    f"finished{still if coming else ''}"
                )
            self._renew_in_time()
            time.sleep(min(pause, landing.time_left()))
            pause = min(pause * 1.2, SLOWEST_POLL_S)
        body, self._part_mb = verify(data, self._token)
        return body

    def _manifest(self) -> bytes | None:
        try:
            return self._store.read(manifest_name(self._version))
        except StoreError as error:
            raise PublisherFailed(str(error)) from error

    def deliver(self, manifest: Manifest, landing: BlockFile) -> None:
        """Read what is missing, part by part."""
        per_part = blocks_per_part(manifest, self._part_mb)
        self._pending = deque(sorted({block // per_part for block in landing.missing()}))
        for _ in range(min(self._config.streams, len(self._pending))):
            with self._condition:
                self._working += 1
            threading.Thread(
                target=self._work, args=(manifest, per_part, landing), name="disk-read", daemon=True
            ).start()
        while True:
            with self._condition:
                if self._condition.wait_for(lambda: not self._working or self._error, POLL_S):
                    break
            landing.time_left()
            self._renew_in_time()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Stop reading and end the lease; otherwise it would expire."""
        with self._condition:
            self._error = self._error or PublisherFailed("closed")
        with contextlib.suppress(StoreError):
            self._store.remove(self._lease)

    def _renew_in_time(self) -> None:
        if time.monotonic() - self._renewed > LEASE_S / 4:
            self._renew()

    def _renew(self) -> None:
        self._beats += 1
        self._renewed = time.monotonic()
        until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + LEASE_S))
        lease = {"version": self._version, "until": until, "beat": self._beats}
        try:
            self._store.write(self._lease, json.dumps(lease).encode())
        except StoreError as error:
            raise PublisherFailed(f"no lease can be written: {error}") from error

    def _work(self, manifest: Manifest, per_part: int, landing: BlockFile) -> None:
        try:
            while True:
                with self._condition:
                    if not self._pending or self._error is not None:
                        return
                    part = self._pending.popleft()
                self._read(part, manifest, per_part, landing)
        except BaseException as error:  # noqa: BLE001 (raised again by deliver, in the caller's thread)
            with self._condition:
                self._error = self._error or error
        finally:
            with self._condition:
                self._working -= 1
                self._condition.notify_all()

    def _read(self, part: int, manifest: Manifest, per_part: int, landing: BlockFile) -> None:
        blocks = range(part * per_part, min((part + 1) * per_part, len(manifest.blocks)))
        failures = 0
        while self._error is None:
            wanted = [block for block in landing.missing() if block in blocks]
            if not wanted:
                return
            problem = self._fetch(part, wanted, blocks.start, manifest, landing)
            if problem:
                failures += 1
                if failures > FAILURES:
                    raise PublisherFailed(problem)
            landing.time_left()
            time.sleep(POLL_S if problem is not None else 0)

    def _fetch(
        self, part: int, wanted: list[int], first: int, manifest: Manifest, landing: BlockFile
    ) -> str | None:
        """Read the part from the first wanted block to the last. ``None`` if something came, else what was
        wrong; empty if the part may still appear."""
        name, size = part_name(self._version, part), manifest.block_size
        start = wanted[0] * size
        end = min((wanted[-1] + 1) * size, manifest.size)
        offset = first * size
        try:
            data = self._store.read(name, start - offset, end - offset)
            if data is None:
                if self._store.read(manifest_name(self._version)) is None:
                    raise PublisherFailed(f"version {self._version} was dropped while it was read")
                return ""
        except StoreError as error:
            return str(error)
        good = True
        with memoryview(data) as view:
            for block in wanted:
                at = block * size - start
                with view[at : at + min(size, manifest.size - block * size)] as piece:
                    if len(piece) < min(size, manifest.size - block * size):
                        return f"{name} ends within block {block}: {len(data)} of {end - start} bytes are there"
                    good &= landing.land(block, piece)
        return None if good else f"{name} holds a bad block"
