"""The newest version in buffers that others map, made when the first engine asks, freed when the last is done."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from astraflow_core.errors import Refused, WeightsError
from astraflow_core.types import Bucket, Delivery, DeviceMemory
from astraflow_weights.buckets import plan
from astraflow_weights.snapshot import Snapshot


class Buffer(Protocol):
    """Memory that holds a copy of some bytes until it is freed."""

    def export(self) -> DeviceMemory:
        """Handles for one receiver more."""

    def free(self) -> None:
        """Give it back."""


@dataclass(slots=True)
class _Offer:
    version: int
    buckets: tuple[Bucket, ...]
    buffers: list[Buffer]
    tickets: dict[str, float] = field(default_factory=dict)


class Offers:
    """``make(data)`` copies bytes into a buffer. One version is in buffers at a time: a superseded one stays until
    its tickets are returned or their ``lease_s`` have passed, and an engine that asks meanwhile has to fetch."""

    def __init__(
        self, make: Callable[[memoryview], Buffer], bucket_bytes: int, lease_s: float
    ) -> None:
        self._make, self._bucket_bytes, self._lease_s = make, bucket_bytes, lease_s
        self._offer: _Offer | None = None
        self._lock = threading.Lock()

    def take(self, snapshot: Snapshot) -> Delivery:
        """A ticket for the version of ``snapshot``. Raises :class:`Refused` while another one is being read, or if
        it cannot be copied."""
        version = snapshot.manifest.version
        with self._lock:
            self._expire()
            offer = self._offer
            if offer is not None and offer.version != version:
                if offer.tickets:
                    raise Refused(
                        409, f"version {offer.version} is still being read; fetch it by HTTP"
                    )
                self._free()
            if self._offer is None:
                self._offer = self._copy(snapshot)
            ticket = uuid.uuid4().hex
            self._offer.tickets[ticket] = time.monotonic() + self._lease_s
            exported = tuple(
                replace(bucket, memory=buffer.export())
                for bucket, buffer in zip(self._offer.buckets, self._offer.buffers, strict=True)
            )
        return Delivery(version, exported, None, ticket)

    def give_back(self, ticket: str) -> None:
        """The receiver has copied what it needs; unknown tickets are ignored, since their lease may be over."""
        with self._lock:
            if self._offer is not None:
                self._offer.tickets.pop(ticket, None)
                if not self._offer.tickets:
                    self._free()

    def close(self) -> None:
        """Free everything; who still maps it keeps it until he lets go."""
        with self._lock:
            self._free()

    def _copy(self, snapshot: Snapshot) -> _Offer:
        buffers: list[Buffer] = []
        try:
            buckets = plan(snapshot, self._bucket_bytes)
            start = snapshot.manifest.tensors[0].start
            for bucket in buckets:
                with snapshot.data[start : start + bucket.size] as data:
                    buffers.append(self._make(data))
                start += bucket.size
        except (WeightsError, RuntimeError) as error:  # torch's when there is no room on the GPU
            for buffer in buffers:
                buffer.free()
            raise Refused(409, f"no copy on the GPU: {error}") from error
        return _Offer(snapshot.manifest.version, buckets, buffers)

    def _expire(self) -> None:
        if self._offer is not None:
            now = time.monotonic()
            self._offer.tickets = {t: end for t, end in self._offer.tickets.items() if end > now}

    def _free(self) -> None:
        offer, self._offer = self._offer, None
        for buffer in offer.buffers if offer is not None else ():
            buffer.free()
