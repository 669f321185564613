"""The half of one rank of a trainer whose ranks publish their own blocks: all of them together are the publisher."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable

import msgspec
import xxhash

from astraflow_core.errors import WeightsError
from astraflow_core.types import Announcement, Manifest, Ranks, Source, TensorSlice
from astraflow_weights.block_range import BlockRange
from astraflow_weights.failures import PublisherFailed
from astraflow_weights.fetch.client import VersionClient
from astraflow_weights.fetch.transfer import BlockTransfer, BufferSink
from astraflow_weights.publish.publisher import Companion
from astraflow_weights.publish.server import WeightServer
from astraflow_weights.publish.store import VersionStore
from astraflow_weights.shard_plan import ElementRange, Parcel, Plan, Run, make_plan
from astraflow_weights.shards.snapshot import ShardSnapshotter, places_of
from astraflow_weights.snapshot import BLOCK_SIZE, Snapshot, check_follows
from astraflow_weights.sources import encode

EXCHANGE = "0exchange"
"""Stands for a policy in the addresses by which ranks give each other what lies in each other's blocks; the name
of a policy begins with a letter."""
ATTEMPTS = 3
HOST = "{host}"
"""In ``advertise``: the name of the host that a rank runs on."""


def own_name(advertise: str | None) -> str | None:
    """``advertise`` as it holds for this host."""
    return advertise.replace(HOST, socket.gethostname()) if advertise else None


def no_shards(host: str, advertise: str | None, one_host: bool) -> str:
    """Why ranks that bind ``host`` and are reached as ``advertise`` says cannot be told apart by receivers; empty
    if they can."""
    if advertise and "://" in advertise:
        return f"advertise = {advertise!r} is one address for all of them"
    if not one_host and HOST not in (advertise or ""):
        return (
            "they are on several hosts: bind them all with host = '0.0.0.0' and let each announce its name with "
            f"advertise = '{HOST}'"
        )
    return ""


class HttpShardPublisher:
    """See :class:`astraflow_core.protocols.transport.ShardPublisher`.

    Memory: of each version held the blocks that this rank serves, which are at most one block more than what it
    exports; one such part in reserve once a version has been dropped; and during a publish an outbox of those
    bytes that lie in blocks of others, and one parcel.
    """

    def __init__(
        self,
        policy: str,
        token: str,
        ranks: Ranks,
        share: Callable[[bytes], list[bytes]],
        *,
        host: str,
        port: int,
        advertise: str | None,
        companion: Companion | None = None,
        block_size: int = BLOCK_SIZE,
    ) -> None:
        self._block_size = block_size
        self._policy, self._token, self._ranks = policy, token, ranks
        self._who = f"rank {ranks.rank} of policy {policy!r}"
        self._share, self._companion = share, companion
        self._store = VersionStore(self._recycle)
        self._exchange = VersionStore(self._recycle)
        port = port + ranks.rank if port else 0
        stores = {policy: self._store, EXCHANGE: self._exchange}
        self._server = WeightServer(stores, token, host, port)
        self._url = self._server.url(own_name(advertise) or host)
        self._urls: list[str] = []
        self._snapshotter: ShardSnapshotter | None = None
        self._plan: Plan | None = None
        self._runs: list[tuple[Run, ...]] = []
        self._digests: list[bytes] = []
        self._incoming: list[tuple[int, Parcel]] = []

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The address of this rank; that of rank 0 is announced."""
        return (self._url,)

    @property
    def peak(self) -> int:
        """The most bytes that were in buffers of this rank at once."""
        return self._snapshotter.peak if self._snapshotter else 0

    def publish(
        self, version: int, slices: Callable[[], Iterable[TensorSlice]], derives_from: int | None
    ) -> Manifest:
        """See :class:`astraflow_core.protocols.transport.ShardPublisher`."""
        check_follows(self._policy, version, self._store.newest)
        taking = self._snapshotter or self._agree_on_plan(slices())
        if self._companion is not None:
            self._companion.begin(self._store.latest())
        part = taking.new_part()
        try:
            self._snapshot(version, taking, slices(), part)
            snapshot = self._compose(version, taking, derives_from, part)
            objects = self._companion.objects(snapshot) if self._companion else {}
            self._store.add(snapshot, objects)
        except BaseException:
            taking.recycle(part)
            raise
        return snapshot.manifest

    def retain(self, versions: frozenset[int]) -> None:
        """Drop all but the newest and ``versions``, each when its last reader has left."""
        self._store.retain(versions)

    def close(self) -> None:
        """Stop serving and free everything; closing twice is allowed."""
        self._server.close()
        self._store.clear()
        self._exchange.clear()
        if self._snapshotter is not None:
            self._snapshotter.close()

    def _agree_on_plan(self, slices: Iterable[TensorSlice]) -> ShardSnapshotter:
        """Send the others what this rank exports and where it serves; the plan follows from the messages of all."""
        mine = list(places_of(slices))
        encoded = self._share(msgspec.msgpack.encode((self._url, mine)))
        said = [
            msgspec.msgpack.decode(each, type=tuple[str, list[ElementRange]]) for each in encoded
        ]
        self._urls = [url for url, _ in said]
        who = f"policy {self._policy!r}"
        plan = make_plan(who, [places for _, places in said], self._block_size)
        self._plan = plan
        self._runs = [plan.runs(rank) for rank in range(self._ranks.size)]
        self._incoming = [
            (index, parcel)
            for giver in range(self._ranks.size)
            for index, parcel in enumerate(plan.parcels(giver))
            if parcel.taker == self._ranks.rank
        ]
        on_block = self._companion.block if self._companion else None
        self._snapshotter = ShardSnapshotter(self._who, plan, self._ranks.rank, mine, on_block)
        return self._snapshotter

    def _snapshot(
        self,
        version: int,
        taking: ShardSnapshotter,
        slices: Iterable[TensorSlice],
        part: BlockRange,
    ) -> None:
        """Copy what this rank exports; then each rank fetches the parts of its blocks that others exported."""
        outbox = taking.new_buffer(taking.outbox_size)
        try:
            taking.take(slices, part, outbox)
            digests = [
                xxhash.xxh3_128_digest(outbox[parcel.offset : parcel.offset + parcel.size])
                for parcel in taking.parcels
            ]
        except BaseException:
            taking.recycle(outbox)
            raise
        nothing = Manifest(EXCHANGE, version, "full", len(outbox), self._block_size, (), (), "")
        self._exchange.add(Snapshot(nothing, b"", outbox), {})
        try:
            told = self._share(msgspec.msgpack.encode(digests))
            promised = [msgspec.msgpack.decode(each, type=list[bytes]) for each in told]
            self._fetch_parcels(version, taking, promised, part)
            self._digests = self._share(taking.digests())
        finally:
            self._exchange.clear()

    def _fetch_parcels(
        self, version: int, taking: ShardSnapshotter, promised: list[list[bytes]], part: BlockRange
    ) -> None:
        until = time.monotonic() + self._ranks.deadline_s
        for giver in dict.fromkeys(parcel.giver for _, parcel in self._incoming):
            wanted = Announcement(EXCHANGE, version, "", (self._urls[giver],), "", 0)
            try:
                with VersionClient(wanted, self._urls[giver], self._token, until) as client:
                    for index, parcel in self._incoming:
                        if parcel.giver == giver:
                            self._fetch(client, parcel, promised[giver][index], taking, part)
            except PublisherFailed as error:
                raise WeightsError(
                    f"{self._who} could not fetch its bytes of version {version} from rank {giver} at "
                    f"{self._urls[giver]}: {error}"
                ) from error

    def _fetch(
        self,
        client: VersionClient,
        parcel: Parcel,
        digest: bytes,
        taking: ShardSnapshotter,
        part: BlockRange,
    ) -> None:
        buffer = taking.new_buffer(parcel.size)
        try:
            for _ in range(ATTEMPTS):
                sink = BufferSink(client, buffer, parcel.offset)
                BlockTransfer(client, "data", sink).run(sink.pieces(client.width()))
                if xxhash.xxh3_128_digest(buffer) == digest:
                    taking.receive(parcel, buffer, part)
                    return
            raise PublisherFailed(f"{parcel.size} bytes arrived corrupted {ATTEMPTS} times")
        finally:
            taking.recycle(buffer)

    def _compose(
        self, version: int, taking: ShardSnapshotter, derives_from: int | None, part: BlockRange
    ) -> Snapshot:
        """The manifest, which is the same on every rank."""
        plan = self._plan
        assert plan is not None, "it was made at the first version"
        blocks = [b""] * len(plan.owners)
        for runs, digests in zip(self._runs, self._digests, strict=True):
            mine = iter(range(0, len(digests), 16))
            for first, last in runs:
                for block in range(first, last):
                    at = next(mine)
                    blocks[block] = digests[at : at + 16]
        manifest = Manifest(
            policy=self._policy,
            version=version,
            kind="full",
            size=plan.size,
            block_size=plan.block_size,
            tensors=plan.specs,
            blocks=tuple(blocks),
            digest=xxhash.xxh3_128_hexdigest(b"".join(blocks)),
            derives_from=derives_from,
        )
        sources = [
            Source(url, runs) for url, runs in zip(self._urls, self._runs, strict=True) if runs
        ]
        return Snapshot(manifest, encode(manifest, sources), part)

    def _recycle(self, memory: memoryview | BlockRange) -> None:
        assert self._snapshotter is not None, "what is held was taken"
        self._snapshotter.recycle(memory)
