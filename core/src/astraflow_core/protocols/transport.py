"""Transport: brings versions of the weights from a trainer to every RaaS, whole and verified."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from astraflow_core.types import Announcement, Delivery, ExportedTensor, Manifest, WeightSource


class Publisher(Protocol):
    """The trainer's half. Publishing waits for the snapshot only, never for a receiver."""

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Addresses that receivers can reach, best first."""

    def publish(
        self,
        version: int,
        tensors: Iterable[ExportedTensor],
        derives_from: int | None = None,
        *,
        base: str | None = None,
    ) -> Manifest:
        """Take a snapshot and offer it as immutable ``version``; returns once it can be fetched. Reusing
        a number is an error. With ``base``, the digest of a model
        (:func:`astraflow_core.weights.base.digest_of_model`), the tensors are an adapter for it; only
        transports with capability ``adapter`` are given one."""

    def retain(self, versions: frozenset[int]) -> None:
        """Keep the newest version and these; others may be dropped once no reader has a lease on them."""

    def close(self) -> None:
        """Stop serving and remove everything from memory and disk."""


class Receiver(Protocol):
    """The RaaS's half. Calls block; the RaaS runs them off its event loop."""

    def fetch(self, announcement: Announcement, deadline_s: float) -> WeightSource:
        """Fetch a version and verify every block and the whole; bad blocks are fetched again. Raises
        :class:`astraflow_core.errors.WeightsError` (and hands out nothing) if it cannot within the
        deadline."""

    def release(self, source: WeightSource) -> None:
        """The source is no longer needed; its file may go."""

    def close(self) -> None:
        """Release everything."""


class DirectReceiver(Receiver, Protocol):
    """Of a transport with capability ``collective`` or ``ipc``. Each engine may get a version directly; what it
    does not get that way is fetched."""

    def meet(
        self, announcement: Announcement, member: str, workers: int, deadline_s: float
    ) -> Delivery:
        """Ask for a direct delivery to the engine ``member`` with so many ``workers``; returns when it is known
        who else gets one. Raises :class:`astraflow_core.errors.WeightsError` if there is none (any more)."""

    def done(self, announcement: Announcement, delivery: Delivery) -> None:
        """The engine needs the delivery no longer, whatever came of it."""


class Transport(Protocol):
    """Built as ``factory(config, context)`` on both sides; each side asks for its half."""

    def publisher(self) -> Publisher:
        """The trainer's half."""

    def receiver(self) -> Receiver:
        """The RaaS's half."""
