"""Buckets of tensors on their way in: received into memory of their own, compared, then opened."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from astraflow_core.errors import WeightsError
from astraflow_core.types import DeviceMemory
from astraflow_serving.buckets import Bucket, digest_of_buffer
from astraflow_torch_weights.group import BroadcastGroup
from astraflow_torch_weights.memory import mapped

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
    "BOOL": torch.bool, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip


Map = Callable[[DeviceMemory, int, torch.device], torch.Tensor]


def opened(
    version: int, buckets: Sequence[Bucket], device: torch.device, map_memory: Map = mapped
) -> list[torch.Tensor]:
    """As :func:`receive`, of buckets that lie in memory to be mapped; each is copied, so the memory may go."""
    buffers, torn = [], []
    for number, bucket in enumerate(buckets):
        if bucket.memory is None:
            raise WeightsError(
                f"bucket {number} of version {version} is neither broadcast nor in memory"
            )
        buffer = map_memory(bucket.memory, bucket.size, device).clone()
        torn += _torn(number, bucket, buffer)
        buffers.append(buffer)
    if torn:
        raise WeightsError(f"version {version} arrived corrupted: {'; '.join(torn[:3])}")
    return buffers


def receive(
    group: BroadcastGroup, version: int, buckets: Sequence[Bucket], device: torch.device
) -> list[torch.Tensor]:
    """One buffer (uint8, on ``device``) per bucket. Raises :class:`WeightsError`, with nothing handed out, if one is
    torn; the broadcast is gone through to its end all the same, for the others' sake."""
    buffers, torn = [], []
    for number, bucket in enumerate(buckets):
        buffer = torch.empty(bucket.size, dtype=torch.uint8, device=device)
        group.broadcast(buffer)
        torn += _torn(number, bucket, buffer)
        buffers.append(buffer)
    group.report(torn[0] if torn else "ok")
    if torn:
        raise WeightsError(f"version {version} arrived corrupted: {'; '.join(torn[:3])}")
    return buffers


def _torn(number: int, bucket: Bucket, buffer: torch.Tensor) -> list[str]:
    """What is wrong with it, if anything."""
    found = digest_of_buffer(buffer.cpu().numpy().data)
    if found == bucket.digest:
        return []
    return [f"bucket {number} has the digest {found}; expected {bucket.digest} as announced"]


def tensors_of(
    buckets: Sequence[Bucket], buffers: Sequence[torch.Tensor]
) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of ``buckets``, as views of ``buffers``."""
    for bucket, buffer in zip(buckets, buffers, strict=True):
        for spec in bucket.tensors:
            yield spec.name, buffer[spec.start : spec.end].view(DTYPES[spec.dtype]).view(spec.shape)
