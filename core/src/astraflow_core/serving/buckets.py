"""What an engine is told when a version does not come as a file but from the trainer's GPU."""

from __future__ import annotations

from dataclasses import dataclass

import xxhash

from astraflow_core.types import TensorSpec


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the ranks of a broadcast meet. The trainer is rank 0 and listens at ``address`` and ``port``; the
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


def digest_of_buffer(data: memoryview) -> str:
    """What a bucket's ``digest`` has to be."""
    return xxhash.xxh3_128_hexdigest(data)
