"""Versions that come from the trainer's memory, into memory next to the weights that are served."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from astraflow_core.errors import WeightsError
from astraflow_core.types import Bucket, Rendezvous
from astraflow_torch_weights.buckets import opened, receive, tensors_of
from astraflow_torch_weights.group import BroadcastGroup, follow


class BroadcastMembership:
    """This engine's place in the broadcast that it joined last. Calls block, each for ``deadline_s`` at most."""

    def __init__(self, device: torch.device, deadline_s: float) -> None:
        self._device, self._deadline_s = device, deadline_s
        self._group: BroadcastGroup | None = None

    def take(self, rendezvous: Rendezvous) -> None:
        """Meet the other ranks; a place that was taken before is given up."""
        self.leave()
        self._group = follow(rendezvous, 0, self._deadline_s)

    def receive(self, version: int, buckets: Sequence[Bucket]) -> dict[str, torch.Tensor]:
        """All tensors of a version, verified, or :class:`WeightsError`."""
        if buckets and all(bucket.memory is not None for bucket in buckets):
            buffers = opened(version, buckets, self._device)
            return dict(tensors_of(buckets, buffers))
        if self._group is None:
            raise WeightsError(f"no broadcast of version {version} was joined")
        try:
            buffers = receive(self._group, version, buckets, self._device)
        finally:
            self.leave()
        return dict(tensors_of(buckets, buffers))

    def leave(self) -> None:
        """Give the place up, if there is one."""
        group, self._group = self._group, None
        if group is not None:
            group.close()
