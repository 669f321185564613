"""The trainer's half: snapshots on offer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from astraflow_core.types import ExportedTensor, Manifest
from astraflow_weights.publish.server import WeightServer
from astraflow_weights.publish.store import VersionStore
from astraflow_weights.snapshot import Snapshot, Snapshotter


class Companion(Protocol):
    """Makes the side objects of each version, such as deltas; one publish at a time."""

    def begin(self, previous: Snapshot | None) -> None:
        """A publish begins. ``previous`` is the newest version, readable until :meth:`objects` has
        returned. A publish may fail after this; the next one starts over."""

    def block(self, index: int, data: memoryview) -> None:
        """A block of the new version is complete and still in the cache; in any order, each once.
        ``data`` is valid during the call."""

    def objects(self, snapshot: Snapshot) -> Mapping[str, Any]:
        """The new version's side objects, name → bytes-like. They are kept by reference until the version
        is dropped, so objects of several versions may share their bytes."""


class HttpPublisher:
    """Publishes the versions of one policy; see :class:`astraflow_core.protocols.transport.Publisher`.

    Memory: one model per version held, and one buffer in reserve once a version has been dropped.
    """

    def __init__(
        self,
        policy: str,
        token: str,
        *,
        host: str,
        port: int,
        advertise: str | None,
        mirrors: tuple[str, ...] = (),
        companion: Companion | None = None,
    ) -> None:
        self._policy = policy
        self._companion = companion
        self._snapshotter = Snapshotter(policy, companion.block if companion else None)
        self._store = VersionStore(self._snapshotter.recycle)
        self._server = WeightServer({policy: self._store}, token, host, port)
        if advertise and "://" in advertise:
            self._endpoint = advertise.rstrip("/")
        else:
            self._endpoint = self._server.url(advertise or host)
        self._mirrors = tuple(mirror.rstrip("/") for mirror in mirrors)

    @property
    def figures(self) -> Mapping[str, float]:
        """The companion's figures about the newest version, if it has an attribute ``figures``."""
        found: Mapping[str, float] = getattr(self._companion, "figures", {})
        return found

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Mirrors, such as a content delivery network or a bucket, and the address of this publisher."""
        return (*self._mirrors, self._endpoint)

    def publish(
        self,
        version: int,
        tensors: Iterable[ExportedTensor],
        derives_from: int | None = None,
        *,
        base: str | None = None,
    ) -> Manifest:
        """Copy ``tensors`` and offer them; raises :class:`WeightsError` if ``version`` is not above all
        before it, or if the tensors differ in name, shape or dtype from those of the first version."""
        if self._companion is not None:
            self._companion.begin(self._store.latest())
        snapshot = self._snapshotter.take(version, tensors, derives_from, base)
        try:
            objects = self._companion.objects(snapshot) if self._companion else {}
            self._store.add(snapshot, objects)
        except BaseException:
            self._snapshotter.recycle(snapshot.data)
            raise
        return snapshot.manifest

    def attach(self, version: int, name: str, data: Any) -> None:
        """Offer one more side object with ``version``, bytes-like, kept by reference. Raises
        :class:`WeightsError` if the version is not held or has one of that name."""
        self._store.attach(version, name, data)

    @contextmanager
    def reading(self, version: int) -> Iterator[Snapshot]:
        """The version's snapshot, which stays as it is within the context."""
        with self._store.reading(version, "") as held:
            yield held.snapshot

    def retain(self, versions: frozenset[int]) -> None:
        """Drop all but the newest and ``versions``, each when its last reader has left."""
        self._store.retain(versions)

    def close(self) -> None:
        """Stop serving and free everything; closing twice is allowed."""
        self._server.close()
        self._store.clear()
        self._snapshotter.close()
