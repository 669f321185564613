"""The description of a version that an engine receives from the trainer's memory instead of as a file."""

from __future__ import annotations

import xxhash

from astraflow_core.types import Bucket, Delivery, DeviceMemory, Rendezvous

__all__ = ["Bucket", "Delivery", "DeviceMemory", "Rendezvous", "digest_of_buffer"]


def digest_of_buffer(data: memoryview) -> str:
    """The expected ``digest`` of a bucket."""
    return xxhash.xxh3_128_hexdigest(data)
