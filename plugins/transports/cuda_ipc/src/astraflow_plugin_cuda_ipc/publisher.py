"""The trainer's half: HTTP, and memory of the GPU for engines that ask."""

from __future__ import annotations

from collections.abc import Iterable

from astraflow_core.errors import Refused
from astraflow_core.types import Delivery, ExportedTensor, Manifest
from astraflow_core.weights.desk import OBJECT, Desk, Joining
from astraflow_core.weights.publisher import HttpPublisher
from astraflow_plugin_cuda_ipc.offers import Offers

HOST = "127.0.0.1"


class CudaIpcPublisher(HttpPublisher):
    """Publishing waits for the snapshot only; the copy to the GPU is made when an engine asks for it."""

    def __init__(self, policy: str, token: str, offers: Offers) -> None:
        super().__init__(policy, token, host=HOST, port=0, advertise=None)
        self._offers = offers
        self._newest = -1
        self._desk = Desk(HOST, policy, token, self._meet, self._done)

    def publish(
        self,
        version: int,
        tensors: Iterable[ExportedTensor],
        derives_from: int | None = None,
        *,
        base: str | None = None,
    ) -> Manifest:
        """As :meth:`HttpPublisher.publish`; a whole version can be mapped too."""
        manifest = super().publish(version, tensors, derives_from, base=base)
        if manifest.kind == "full" and any(spec.end > spec.start for spec in manifest.tensors):
            self._newest = version
            self.attach(version, OBJECT, self._desk.where(HOST))
        return manifest

    def close(self) -> None:
        """Stop serving and free the copy."""
        self._desk.close()
        self._offers.close()
        super().close()

    def _meet(self, version: int, asked: Joining) -> Delivery:
        if version != self._newest:
            raise Refused(404, f"version {version} is not the newest; fetch it by HTTP")
        with self.reading(version) as snapshot:
            return self._offers.take(snapshot)

    def _done(self, version: int, ticket: str) -> None:
        self._offers.give_back(ticket)
