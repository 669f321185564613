"""The trainer's half: snapshots on offer."""

from __future__ import annotations

from collections.abc import Iterable

from astraflow_core.types import ExportedTensor, Manifest
from astraflow_plugin_zmq.config import ZmqConfig
from astraflow_plugin_zmq.server import BlockServer
from astraflow_weights.publish.store import VersionStore
from astraflow_weights.snapshot import Snapshotter
from astraflow_wire.http.listening import own_address


class ZmqPublisher:
    """Publishes the versions of one policy; see :class:`astraflow_core.protocols.transport.Publisher`.

    Memory: one model per version held, a buffer in reserve, and per receiver the blocks under way.
    """

    def __init__(self, policy: str, token: str, config: ZmqConfig) -> None:
        self._policy = policy
        self._snapshotter = Snapshotter(policy)
        self._store = VersionStore(self._snapshotter.recycle)
        host = own_address(config.host)
        self._server = BlockServer(self._store, policy, token, host, config.port)
        name = config.advertise or host
        name = f"[{name}]" if ":" in name else name
        self._endpoint = f"tcp://{name}:{self._server.port}"

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The one address of this publisher."""
        return (self._endpoint,)

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
        snapshot = self._snapshotter.take(version, tensors, derives_from, base)
        self._store.add(snapshot, {})
        return snapshot.manifest

    def retain(self, versions: frozenset[int]) -> None:
        """Drop all but the newest and ``versions``, each when its last reader has left."""
        self._store.retain(versions)

    def close(self) -> None:
        """Stop serving and free everything; closing twice is allowed."""
        self._server.close()
        self._store.clear()
        self._snapshotter.close()
