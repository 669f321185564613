"""The trainer's half: parts first, the manifest last, in the background."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

from astraflow_core.errors import WeightsError
from astraflow_core.types import ExportedTensor, Manifest
from astraflow_plugin_disk.config import DiskConfig
from astraflow_plugin_disk.places import blocks_per_part, manifest_name, part_name, sign, tag_of
from astraflow_plugin_disk.store import ObjectStore, StoreError
from astraflow_plugin_disk.sweeper import Sweeper
from astraflow_plugin_disk.writer import Writer
from astraflow_weights.snapshot import Snapshot, Snapshotter


class DiskPublisher:
    """Publishes the versions of one policy; see :class:`astraflow_core.protocols.transport.Publisher`.

    Memory: one model, and up to two more while the store is slower than the trainer.
    """

    def __init__(self, run: str, policy: str, token: str, config: DiskConfig) -> None:
        self._policy, self._token, self._config = policy, token, config
        self._url = f"{config.url}/{run}/{policy}-{tag_of(token)}/{uuid4().hex[:12]}"
        self._store = ObjectStore(self._url, config.options)
        self._snapshotter = Snapshotter(policy)
        self._sweeper = Sweeper(self._store, policy)
        self._lock = threading.Lock()
        self._held: dict[int, bool] = {}
        """Versions that are not dropped, and whether each is written."""
        self._writer = Writer(f"disk-{policy}", self._store, self._write, self._done)
        self._closed = False

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The folder of this publisher."""
        return (self._url,)

    def publish(
        self,
        version: int,
        tensors: Iterable[ExportedTensor],
        derives_from: int | None = None,
        *,
        base: str | None = None,
    ) -> Manifest:
        """Copy ``tensors``, which are written in the background; receivers wait for them. Raises
        :class:`WeightsError` if ``version`` is not above all before it, if the tensors differ from those of the
        first version, if the store fails, or if it has failed at a version before, which was not said yet."""
        if self._closed:
            raise WeightsError(f"the publisher of policy {self._policy!r} was closed")
        self._writer.raise_problem()
        self._writer.make_room()
        snapshot = self._snapshotter.take(version, tensors, derives_from, base)
        with self._lock:
            self._held[version] = False
        try:
            self._writer.put(snapshot)
        except StoreError as error:
            raise WeightsError(
                f"version {version} of policy {self._policy!r} cannot be published: {error}; earlier versions stay "
                "available"
            ) from error
        return snapshot.manifest

    def finish(self) -> None:
        """Wait until all that was published is in the store. Raises :class:`WeightsError` if it cannot be, or if
        the store takes nothing for long."""
        self._writer.finish()
        self._writer.raise_problem()

    def retain(self, versions: frozenset[int]) -> None:
        """Drop all but the newest and ``versions``, each when no lease is left; waits for nothing. What waits to be
        written and is not among ``versions`` is left out when a newer version comes."""
        newest = self._snapshotter.newest
        with self._lock:
            dropped = [v for v in self._held if v != newest and v not in versions]
            written = [v for v in dropped if self._held.pop(v)]
        if newest not in versions:
            self._writer.let_go(newest)
        for version in written:
            self._sweeper.drop(version)

    def close(self) -> None:
        """Remove everything, or end what is being written and leave it if it is to be kept; closing twice is
        allowed."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._config.keep:
                self.finish()
        finally:
            self._writer.close()
            self._sweeper.close()
            self._snapshotter.close()
        if not self._config.keep:
            try:
                self._store.remove("")
            except StoreError as error:
                raise WeightsError(f"versions were left in {self._url}: {error}") from error

    def _done(self, snapshot: Snapshot, written: bool) -> None:
        version = snapshot.manifest.version
        self._snapshotter.recycle(snapshot.data)
        with self._lock:
            stays = written and version in self._held
            if stays:
                self._held[version] = True
            else:
                self._held.pop(version, None)
        if not stays:  # what was written of it goes
            self._sweeper.drop(version)

    def _write(self, snapshot: Snapshot) -> None:
        manifest = snapshot.manifest
        version = manifest.version
        step = blocks_per_part(manifest, self._config.part_mb) * manifest.block_size
        starts = range(0, manifest.size, step)

        def put(part: int) -> None:
            with snapshot.data[starts[part] : starts[part] + step] as data:
                self._store.write(part_name(version, part), data)
            self._writer.wrote()

        with ThreadPoolExecutor(self._config.streams, "disk-publish") as pool:
            written = [pool.submit(put, part) for part in range(len(starts))]
            try:
                for each in written:
                    each.result()
            except StoreError:
                for each in written:
                    each.cancel()
                raise
        signed = sign(snapshot.encoded, self._token, self._config.part_mb)
        self._store.write(manifest_name(version), signed)
