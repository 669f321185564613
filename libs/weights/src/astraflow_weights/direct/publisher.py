"""The trainer's half of transports that deliver versions into engines: HTTP, and a delivery server for engines."""

from __future__ import annotations

from collections.abc import Iterable

from astraflow_core.errors import Refused
from astraflow_core.types import Delivery, ExportedTensor, Manifest
from astraflow_weights.direct.delivery_server import OBJECT, DeliveryServer, Joining
from astraflow_weights.publish.publisher import HttpPublisher


class DirectHttpPublisher(HttpPublisher):
    """Publishes as :class:`HttpPublisher` does. A transport derives from it and defines what a whole version begins
    (:meth:`begin`), and what an engine that asks gets (:meth:`meet`) and gives back (:meth:`done`)."""

    def __init__(self, policy: str, token: str, *, host: str, port: int, advertise: str) -> None:
        self._address = advertise.strip("[]")
        super().__init__(policy, token, host=host, port=port, advertise=self._address)
        self._desk = DeliveryServer(host, policy, token, self.meet, self.done)

    def publish(
        self,
        version: int,
        tensors: Iterable[ExportedTensor],
        derives_from: int | None = None,
        *,
        base: str | None = None,
    ) -> Manifest:
        """As :meth:`HttpPublisher.publish`; a whole version that is not empty can also be delivered directly."""
        manifest = super().publish(version, tensors, derives_from, base=base)
        if manifest.kind == "full" and any(spec.end > spec.start for spec in manifest.tensors):
            self.begin(version)
            self.attach(version, OBJECT, self._desk.where(self._address))
        return manifest

    def begin(self, version: int) -> None:
        """Deliveries are of this version from now on."""

    def meet(self, version: int, asked: Joining) -> Delivery:
        """A delivery for an engine, in the thread of its request, which may wait. Raises
        :class:`astraflow_core.errors.Refused` if there is none."""
        raise Refused(404, f"version {version} is not delivered; fetch it by HTTP")

    def done(self, version: int, ticket: str) -> None:
        """An engine no longer needs its delivery."""

    def close(self) -> None:
        """Stop serving and free everything; closing twice is allowed."""
        self._desk.close()
        super().close()
