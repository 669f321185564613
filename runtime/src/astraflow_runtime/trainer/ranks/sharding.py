"""Sharded publishing: each rank publishes its own blocks, led by rank 0."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import cast

from astraflow_core.config.models import PolicyTable
from astraflow_core.errors import UserError, WeightsError
from astraflow_core.protocols.trainer import ExportsShards, Trainer
from astraflow_core.protocols.transport import ShardedTransport, ShardPublisher, Transport
from astraflow_core.types import ExportedTensor, Manifest
from astraflow_runtime.trainer.operations import Operations
from astraflow_runtime.trainer.ranks.rendezvous import RankRendezvous

log = logging.getLogger(__name__)


def sharded(
    table: PolicyTable,
    trainer: Trainer,
    can_train: frozenset[str],
    transport: Transport,
    can_send: frozenset[str],
    meeting: RankRendezvous,
) -> ShardedTransport | None:
    """The transport, if the ranks publish their own blocks with it; the same on all of them. Raises
    :class:`UserError` if this was requested and is not possible.
    """
    if meeting.ranks.size == 1 or "sharded_export" not in can_train:
        return None
    wanted = cast(ExportsShards, trainer).publish
    if wanted == "gathered":
        return None
    ready = cast(ShardedTransport, transport)
    if getattr(trainer, "weights_kind", "full") != "full":
        problem = "an adapter is published whole"
    elif "sharded" not in can_send:
        problem = f"transport {table.transport.use!r} accepts only whole tensors from one process"
    else:
        problem = ready.no_shards(one_host=not meeting.host)
    if not problem:
        log.info("each of %d ranks publishes what it holds", meeting.ranks.size)
        return ready
    if wanted == "sharded":
        raise UserError(
            f"{meeting.who} has publish = 'sharded', and {problem}; use a transport with capability 'sharded' "
            "(`astraflow plugins`) and matching keys, or set publish = 'gathered'"
        )
    log.info("rank 0 publishes the weights of all ranks: %s", problem)
    return None


class RankZeroPublisher:
    """A :class:`astraflow_core.protocols.transport.Publisher` that all ranks of a trainer are together, on rank 0:
    ``own`` is its own half."""

    def __init__(self, own: ShardPublisher, operations: Operations) -> None:
        self._own, self._operations = own, operations

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The endpoints of the manifest, which names the other ranks."""
        return self._own.endpoints

    def publish(
        self,
        version: int,
        tensors: Iterable[ExportedTensor],
        derives_from: int | None = None,
        *,
        base: str | None = None,
    ) -> Manifest:
        """Let every rank publish its blocks; the gathered ``tensors`` are ignored."""
        if base is not None:
            raise WeightsError("an adapter is published whole: set publish = 'gathered'")
        return self._operations.publish_shards(version, derives_from)

    def retain(self, versions: frozenset[int]) -> None:
        """Retain versions on every rank."""
        self._operations.retain_shards(versions)

    def close(self) -> None:
        """Stop serving on rank 0; the others stop with their rank."""
        self._own.close()
