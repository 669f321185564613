"""Serves others what a receiver has verified, while it still receives the rest."""

from __future__ import annotations

import mmap
import threading

import msgspec

from astraflow_core.errors import UserError, WeightsError
from astraflow_core.types import Manifest
from astraflow_weights.arrivals import Arrivals
from astraflow_weights.publish.server import WeightServer
from astraflow_weights.publish.store import VersionStore
from astraflow_weights.snapshot import Snapshot, discard


class Relay:
    """Listens on the address by which its receiver reaches the publisher, from the first fetch on.
    The publisher refers others to it: see :class:`astraflow_weights.publish.fan_out.FanOut`."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._stores: dict[str, VersionStore] = {}
        self._server: WeightServer | None = None
        self._lock = threading.Lock()

    def port(self, host: str) -> int:
        """The port on which it listens; ``host`` is the local address to listen on, if it does not yet."""
        with self._lock:
            if self._server is None:
                try:
                    self._server = WeightServer(self._stores, self._token, host, 0)
                except UserError as error:
                    raise WeightsError(f"this receiver cannot relay: {error}") from error
            return self._server.port

    def offer(self, manifest: Manifest, file: int, arrivals: Arrivals) -> None:
        """Serve the version that is being written to the open ``file``, each block once it has arrived."""
        store = self._stores.setdefault(manifest.policy, VersionStore(discard))
        data = memoryview(mmap.mmap(file, manifest.size, prot=mmap.PROT_READ))
        if not store.add_arriving(
            Snapshot(manifest, msgspec.msgpack.encode(manifest), data), arrivals
        ):
            discard(data)

    def withdraw(self, policy: str, version: int) -> None:
        """Stop serving a version when its last reader has left. Its file may be deleted at once, but must
        not be written to."""
        if policy in self._stores:
            self._stores[policy].drop(version)

    def close(self) -> None:
        """Stop serving; closing twice is allowed."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for store in self._stores.values():
            store.clear()
