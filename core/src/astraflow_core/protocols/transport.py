"""Transport: brings versions of the weights from a trainer to every RaaS, whole and verified."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from astraflow_core.types import (
    Announcement,
    Delivery,
    ExportedTensor,
    Manifest,
    TensorSlice,
    WeightSource,
)


class Publisher(Protocol):
    """The trainer's half. Publishing waits for the snapshot only, never for a receiver. It may have an attribute
    ``figures``, a mapping of names to numbers about the newest version, which become metrics of its step."""

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
        """Take a snapshot and offer it as immutable ``version``; returns once fetches of it succeed, though
        they may wait for data still being written in the background; if that fails, the next publish raises.
        Reusing a number is an error. With ``base``, the digest of a model
        (:func:`astraflow_wire.model_files.model_digest.digest_of_model`), the tensors are an adapter for it; only
        transports with capability ``adapter`` get one."""

    def retain(self, versions: frozenset[int]) -> None:
        """Keep the newest version and these; others may be dropped once no reader has a lease on them."""

    def close(self) -> None:
        """Stop serving and remove everything from memory and disk."""


class ShardPublisher(Protocol):
    """The half of one rank of a trainer whose ranks publish what they hold. Every rank makes the same calls in the
    same order; together they are a :class:`Publisher`, whose versions are bitwise identical to those of one
    with the whole model."""

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Addresses that receivers can reach, best first; those of rank 0 are announced."""

    def publish(
        self, version: int, slices: Callable[[], Iterable[TensorSlice]], derives_from: int | None
    ) -> Manifest:
        """Take a snapshot of this rank's slices and offer it; the manifest is that of the whole version, on every
        rank. When all ranks have returned it can be fetched. ``slices`` gives the export and may be called
        twice."""

    def retain(self, versions: frozenset[int]) -> None:
        """Keep the newest version and these."""

    def close(self) -> None:
        """Stop serving and free everything."""


class Receiver(Protocol):
    """The RaaS's half. Calls block; the RaaS runs them off its event loop."""

    def fetch(self, announcement: Announcement, deadline_s: float) -> WeightSource:
        """Fetch a version and verify every block and the whole; bad blocks are fetched again. Raises
        :class:`astraflow_core.errors.WeightsError` (and returns nothing) if it cannot do so within
        the deadline."""

    def release(self, source: WeightSource) -> None:
        """The source is no longer needed; its file may be deleted."""

    def close(self) -> None:
        """Release everything."""


class DirectReceiver(Receiver, Protocol):
    """Of a transport with capability ``collective`` or ``ipc``. Each engine may get a version directly; what
    is not delivered that way is fetched."""

    def meet(
        self, announcement: Announcement, member: str, workers: int, deadline_s: float
    ) -> Delivery:
        """Ask for a direct delivery to the engine ``member``, which has ``workers`` processes; returns once the
        other receivers are known. Raises :class:`astraflow_core.errors.WeightsError` if there is none (any longer)."""

    def done(self, announcement: Announcement, delivery: Delivery) -> None:
        """The engine no longer needs the delivery, whether it succeeded or not."""


class Transport(Protocol):
    """Built as ``factory(config, context)`` on both sides; each side asks for its half."""

    def publisher(self) -> Publisher:
        """The trainer's half."""

    def receiver(self) -> Receiver:
        """The RaaS's half."""


class ShardedTransport(Transport, Protocol):
    """A transport with capability ``sharded``."""

    def no_shards(self, one_host: bool) -> str:
        """Why ranks that are all on ``one_host``, or are not, cannot publish their own blocks with these keys; empty
        if they can."""

    def shard_publisher(self, share: Callable[[bytes], list[bytes]]) -> ShardPublisher:
        """The half of this rank (``context.ranks``). ``share`` sends bytes to all ranks and returns what each of
        them sent, in the order of ranks; all must call it."""
