"""The trainer's half: HTTP, and memory of the GPU for engines that ask."""

from __future__ import annotations

from astraflow_core.errors import Refused
from astraflow_core.types import Delivery
from astraflow_plugin_cuda_ipc.offers import Offers
from astraflow_weights.direct.delivery_server import Joining
from astraflow_weights.direct.publisher import DirectHttpPublisher

HOST = "127.0.0.1"


class CudaIpcPublisher(DirectHttpPublisher):
    """Publishing waits for the snapshot only; the copy to the GPU is made when an engine asks for it."""

    def __init__(self, policy: str, token: str, offers: Offers) -> None:
        self._offers = offers
        self._newest = -1
        super().__init__(policy, token, host=HOST, port=0, advertise=HOST)

    def begin(self, version: int) -> None:
        """The version is the one that can be mapped."""
        self._newest = version

    def meet(self, version: int, asked: Joining) -> Delivery:
        """A ticket for the copy of the newest version."""
        if version != self._newest:
            raise Refused(404, f"version {version} is not the newest; fetch it by HTTP")
        with self.reading(version) as snapshot:
            return self._offers.take(snapshot)

    def done(self, version: int, ticket: str) -> None:
        """Free the copy when the last ticket is back."""
        self._offers.give_back(ticket)

    def close(self) -> None:
        """Stop serving and free the copy."""
        super().close()
        self._offers.close()
