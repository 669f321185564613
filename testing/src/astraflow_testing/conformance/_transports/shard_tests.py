"""Tests of a transport that declares ``sharded``."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from astraflow_core.errors import WeightsError
from astraflow_core.protocols.transport import ShardPublisher
from astraflow_core.types import ExportedTensor, Manifest, TensorSlice
from astraflow_core.types.weights import DTYPE_BYTES
from astraflow_testing.conformance._transports import tensors
from astraflow_testing.conformance._transports.transport_checks import (
    DEADLINE_S,
    arrives,
    compare,
    demand,
    refused,
)
from astraflow_testing.conformance._transports.transport_rig import TransportRig, announcement

RANKS = 3


class Sharing:
    """Communication of ranks in threads of one process."""

    def __init__(self, ranks: int) -> None:
        self._met = threading.Barrier(ranks, timeout=DEADLINE_S)
        self._messages = [b""] * ranks

    def of(self, rank: int) -> Callable[[bytes], list[bytes]]:
        """The ``share`` of a rank."""

        def share(mine: bytes) -> list[bytes]:
            self._messages[rank] = mine
            self._met.wait()
            heard = list(self._messages)
            self._met.wait()
            return heard

        return share


def slices(published: Iterable[ExportedTensor], rank: int, ranks: int) -> Iterator[TensorSlice]:
    """What one rank holds if each tensor is cut into about equal runs of elements."""
    for tensor in published:
        width, count = DTYPE_BYTES[tensor.dtype], math.prod(tensor.shape)
        start, stop = count * rank // ranks, count * (rank + 1) // ranks
        data = tensors.bytes_of(tensor)[start * width : stop * width]
        yield TensorSlice(tensor.name, tensor.dtype, tensor.shape, start, data)


def publish_together(
    ranks: list[ShardPublisher], version: int, published: list[ExportedTensor]
) -> list[Manifest]:
    """The manifest that each rank returns, in a thread of its own."""

    def publish(rank: int) -> Manifest:
        def mine() -> Iterator[TensorSlice]:
            return slices(published, rank, len(ranks))

        return ranks[rank].publish(version, mine, version - 1 or None)

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(publish, range(len(ranks))))


class ShardTests:
    """Part of :class:`astraflow_testing.conformance.transport.TransportConformance`."""

    def test_ranks_publish_what_one_publisher_would(
        self, rig: TransportRig, flags: frozenset[str]
    ) -> None:
        if "sharded" not in flags:
            pytest.skip("the transport does not declare 'sharded'")
        share = Sharing(RANKS)
        ranks = [rig.shard_publisher(rank, RANKS, share.of(rank)) for rank in range(RANKS)]
        alone, receiver = rig.publisher(), rig.receiver()
        published = [*tensors.every_dtype(1), *tensors.model(1)]
        for version in (1, 2, 3):
            expected = alone.publish(version, published, version - 1 or None)
            for manifest in publish_together(ranks, version, published):
                demand(
                    manifest == expected,
                    f"returned the digest {manifest.digest} for the slices of {RANKS} ranks and "
                    f"{expected.digest} for the whole",
                    "the same manifest",
                )
            for rank in ranks:
                rank.retain(frozenset())
            arrives(receiver, announcement(expected, ranks[0].endpoints), published)
            published = tensors.changed(published, version)

    def test_a_rank_that_is_gone_is_named_and_what_was_fetched_stays(
        self, rig: TransportRig, flags: frozenset[str]
    ) -> None:
        if "sharded" not in flags:
            pytest.skip("the transport does not declare 'sharded'")
        share = Sharing(RANKS)
        ranks = [rig.shard_publisher(rank, RANKS, share.of(rank)) for rank in range(RANKS)]
        receiver, published = rig.receiver(), tensors.model(1)
        told = announcement(publish_together(ranks, 1, published)[0], ranks[0].endpoints)
        before = arrives(receiver, told, published)
        newer = publish_together(ranks, 2, tensors.model(2))[0]
        gone = ranks[1].endpoints[0]
        ranks[1].close()
        with refused(WeightsError, "blocks of a rank that is gone came", naming=gone):
            receiver.fetch(announcement(newer, ranks[0].endpoints), DEADLINE_S)
        compare(before, told, published)
