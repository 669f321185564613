"""A version that does not come as a file: what an engine needs to receive it from the trainer's memory."""

from __future__ import annotations

from dataclasses import dataclass

from astraflow_core.types.weights import TensorSpec


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the ranks of a broadcast rendezvous. The trainer is rank 0 and listens at ``address`` and ``port``; the
    engine's workers are ``rank_offset`` and following, of ``world_size`` in all."""

    address: str
    port: int
    rank_offset: int
    world_size: int


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """A buffer on a GPU of this host that another process exported by CUDA IPC: what torch's
    ``UntypedStorage._share_cuda_`` returns, less the number of the device."""

    handle: bytes
    size: int
    offset: int
    counter_handle: bytes
    counter_offset: int
    event_handle: bytes
    event_sync_required: bool


@dataclass(frozen=True, slots=True)
class Bucket:
    """Tensors that lie end to end in one buffer, at ``start`` to ``end`` in it. ``digest`` is the xxh3-128 hex
    digest of the buffer, and what a receiver compares before it uses any of it. ``memory``: where to map it; without
    one it is broadcast."""

    tensors: tuple[TensorSpec, ...]
    digest: str
    memory: DeviceMemory | None = None

    @property
    def size(self) -> int:
        """Bytes of the buffer."""
        return self.tensors[-1].end


@dataclass(frozen=True, slots=True)
class Delivery:
    """A whole version in ``buckets``: broadcast in this order to those who meet at ``rendezvous``, or, without
    one, in memory that they map. ``ticket`` is the transport's name for this receiver's share in it."""

    version: int
    buckets: tuple[Bucket, ...]
    rendezvous: Rendezvous | None
    ticket: str = ""
