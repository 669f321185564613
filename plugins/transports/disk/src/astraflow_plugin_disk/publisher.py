"""The trainer's half: parts first, the manifest last."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

from astraflow_core.errors import WeightsError
from astraflow_core.types import ExportedTensor, Manifest
from astraflow_core.weights.snapshot import Snapshot, Snapshotter
from astraflow_plugin_disk.config import DiskConfig
from astraflow_plugin_disk.places import blocks_per_part, manifest_name, part_name, sign, tag_of
from astraflow_plugin_disk.store import Store, StoreError
from astraflow_plugin_disk.sweeper import Sweeper


class DiskPublisher:
    """Publishes the versions of one policy; see :class:`astraflow_core.protocols.transport.Publisher`.

    Memory: one model. A publish takes as long as the store takes.
    """

    def __init__(self, run: str, policy: str, token: str, config: DiskConfig) -> None:
        self._policy, self._token, self._config = policy, token, config
        self._url = f"{config.url}/{run}/{policy}-{tag_of(token)}/{uuid4().hex[:12]}"
        self._store = Store(self._url, config.options)
        self._snapshotter = Snapshotter(policy)
        self._sweeper = Sweeper(self._store, policy)
        self._held: set[int] = set()
        self._newest = -1
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
        """Write ``tensors`` to the store. Raises :class:`WeightsError` if ``version`` is not above all
        before it, if the tensors differ from those of the first version, or if the store fails; what was
        written of the version is removed then."""
        if self._closed:
            raise WeightsError(f"the publisher of policy {self._policy!r} was closed")
        if version <= self._newest:
            raise WeightsError(
                f"policy {self._policy!r}: version {version} cannot follow version "
                f"{self._newest}; numbers are never used again"
            )
        snapshot = self._snapshotter.take(version, tensors, derives_from, base)
        try:
            self._write(version, snapshot)
        except StoreError as error:
            self._sweeper.drop(version)
            raise WeightsError(
                f"version {version} of policy {self._policy!r} cannot be published: {error}; what was "
                "published before stays"
            ) from error
        finally:
            self._snapshotter.recycle(snapshot.data)
        self._held.add(version)
        self._newest = version
        return snapshot.manifest

    def retain(self, versions: frozenset[int]) -> None:
        """Drop all but the newest and ``versions``, each when no lease is left; waits for nothing."""
        for version in [v for v in self._held if v != self._newest and v not in versions]:
            self._held.discard(version)
            self._sweeper.drop(version)

    def close(self) -> None:
        """Remove everything, unless it is to be kept; closing twice is allowed."""
        if self._closed:
            return
        self._closed = True
        self._sweeper.close()
        self._snapshotter.close()
        if not self._config.keep:
            try:
                self._store.remove("")
            except StoreError as error:
                raise WeightsError(f"versions were left in {self._url}: {error}") from error

    def _write(self, version: int, snapshot: Snapshot) -> None:
        manifest = snapshot.manifest
        step = blocks_per_part(manifest, self._config.part_mb) * manifest.block_size
        starts = range(0, manifest.size, step)

        def put(part: int) -> None:
            with snapshot.data[starts[part] : starts[part] + step] as data:
                self._store.write(part_name(version, part), data)

        with ThreadPoolExecutor(self._config.streams, "disk-publish") as pool:
            list(pool.map(put, range(len(starts))))
        signed = sign(snapshot.encoded, self._token, self._config.part_mb)
        self._store.write(manifest_name(version), signed)
