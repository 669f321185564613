"""Versions that several ranks publish together, against one that is published whole."""

from __future__ import annotations

import itertools
import math
import random
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import msgspec
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow_core.errors import WeightsError, WireError
from astraflow_core.types import Announcement, Manifest, Ranks, Source, TensorSlice
from astraflow_core.types.weights import DTYPE_BYTES
from astraflow_testing.conformance._transports.shard_tests import Sharing
from astraflow_weights import shard_plan
from astraflow_weights.announced import decode_manifest
from astraflow_weights.fetch.receiver import HttpReceiver
from astraflow_weights.shard_plan import ElementRange, Plan, make_plan
from astraflow_weights.shards.publisher import HttpShardPublisher, no_shards, own_name
from astraflow_weights.sources import decode, encode
from astraflow_wire.model_files.tensor_file import lay_out

BLOCK = 64
TOKEN = "a-token-of-the-run"
Cut = tuple[list[list[ElementRange]], dict[str, tuple[str, tuple[int, ...]]]]


@st.composite
def cuts(draw: st.DrawFn, most_ranks: int = 5) -> Cut:
    """Tensors, and the elements of them that each rank holds: from whole rows to single elements."""
    ranks = draw(st.integers(1, most_ranks))
    said: list[list[ElementRange]] = [[] for _ in range(ranks)]
    tensors = {}
    for number in range(draw(st.integers(1, 6))):
        dtype = draw(st.sampled_from(["F32", "BF16", "U8"]))
        shape = tuple(draw(st.lists(st.integers(0, 9), max_size=3)))
        name, count = f"t{number}", math.prod(shape)
        tensors[name] = dtype, shape
        ends = draw(st.lists(st.integers(0, count), max_size=2 * ranks))
        bounds = sorted({0, count, *ends})
        pieces = list(itertools.pairwise(bounds)) or [(0, count)]
        for start, stop in pieces:
            rank = draw(st.integers(0, ranks - 1))
            said[rank].append(ElementRange(name, dtype, shape, start, stop))
    return said, tensors


def held_by(plan: Plan, rank: int) -> int:
    return sum(f.stop - f.start for f in plan.fragments if f.giver == rank)


def served_by(plan: Plan, rank: int) -> int:
    return sum(
        min(last * plan.block_size, plan.size) - first * plan.block_size
        for first, last in plan.runs(rank)
    )


@given(cuts())
def test_every_byte_and_every_block_has_one_rank(cut: Cut) -> None:
    said, tensors = cut
    plan = make_plan("policy 'p'", said, BLOCK)
    header, specs = lay_out((name, *tensor) for name, tensor in tensors.items())
    assert (plan.header, plan.specs) == (header, specs)
    position = 0
    for fragment in plan.fragments:
        assert fragment.start == position < fragment.stop
        assert fragment.start // BLOCK == (fragment.stop - 1) // BLOCK
        assert fragment.taker == plan.owners[fragment.start // BLOCK]
        position = fragment.stop
    assert position == plan.size == (specs[-1].end if specs else len(header))
    ranks = range(len(said))
    blocks = [block for rank in ranks for run in plan.runs(rank) for block in range(*run)]
    assert sorted(blocks) == list(range(len(plan.owners)))
    given_away = {f for f in plan.fragments if f.giver != f.taker}
    parcels = [parcel for rank in ranks for parcel in plan.parcels(rank)]
    assert {f for parcel in parcels for f in parcel.fragments} == given_away
    for giver in ranks:
        end = 0
        for parcel in plan.parcels(giver):
            assert (parcel.giver, parcel.offset) == (giver, end)
            assert {f.taker for f in parcel.fragments} == {parcel.taker}
            end += parcel.size
    for rank in ranks:
        assert served_by(plan, rank) < held_by(plan, rank) + BLOCK


@given(cuts())
def test_what_is_missing_or_comes_twice_is_refused(cut: Cut) -> None:
    said, _ = cut
    pieces = [(rank, p) for rank, places in enumerate(said) for p in places if p.start < p.stop]
    for rank, place in pieces[:3]:
        without = [[p for p in places if p is not place] for places in said]
        without[rank].append(msgspec.structs.replace(place, stop=place.start))
        with pytest.raises(WeightsError, match=f"no rank exports elements {place.start} to"):
            make_plan("policy 'p'", without, BLOCK)
        twice = [list(places) for places in said]
        twice[(rank + 1) % len(said)].append(place)
        with pytest.raises(WeightsError, match="each element must come once"):
            make_plan("policy 'p'", twice, BLOCK)
        other = msgspec.structs.replace(place, dtype="F16")
        with pytest.raises(WeightsError, match=r"on rank \d and .* on rank \d"):
            make_plan("policy 'p'", [*said, [other]], BLOCK)


def test_what_is_given_away_comes_in_parcels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_plan, "MAX_PARCEL", 2 * BLOCK)
    said: list[list[ElementRange]] = [[], []]
    for element in range(2000):  # the ranks take turns, so each gives away half of all blocks
        said[element % 2].append(ElementRange("t", "U8", (2000,), element, element + 1))
    plan = make_plan("policy 'p'", said, BLOCK)
    for giver in (0, 1):
        parcels = plan.parcels(giver)
        assert len(parcels) > 2 and all(0 < parcel.size <= 2 * BLOCK for parcel in parcels)
        given = sum(f.stop - f.start for f in plan.fragments if f.giver == giver != f.taker)
        assert sum(parcel.size for parcel in parcels) == given


def test_rows_that_many_ranks_hold_are_served_by_all_of_them_alike() -> None:
    """Tensors so small that every block holds rows of all ranks."""
    ranks, rows, columns = 8, 16, 3
    said: list[list[ElementRange]] = [[] for _ in range(ranks)]
    each = rows // ranks * columns
    for number, rank in itertools.product(range(400), range(ranks)):
        place = ElementRange(f"t{number}", "F32", (rows, columns), rank * each, (rank + 1) * each)
        said[rank].append(place)
    plan = make_plan("policy 'p'", said, 1024)
    served = [served_by(plan, rank) for rank in range(1, ranks)]
    assert max(served) - min(served) <= 2 * 1024


def contents(tensors: dict[str, tuple[str, tuple[int, ...]]], seed: int) -> dict[str, bytes]:
    generator = random.Random(seed)
    return {
        name: generator.randbytes(math.prod(shape) * DTYPE_BYTES[dtype])
        for name, (dtype, shape) in tensors.items()
    }


class Together:
    """Ranks in threads, and what each of them exports."""

    def __init__(self, said: list[list[ElementRange]], stack: ExitStack) -> None:
        self._messages = said
        share = Sharing(len(said))
        self.ranks = [
            stack.enter_context(
                closing(
                    HttpShardPublisher(
                        "p", TOKEN, Ranks(rank, len(said), rank, 30.0), share.of(rank),
                        host="127.0.0.1", port=0, advertise=None, block_size=BLOCK,
                    )
                )
            )
            for rank in range(len(said))
        ]  # fmt: skip

    def publish(self, version: int, data: dict[str, bytes]) -> list[Manifest]:
        def slices(rank: int) -> Iterator[TensorSlice]:
            for p in self._messages[rank]:
                width = DTYPE_BYTES[p.dtype]
                yield TensorSlice(
                    p.name,
                    p.dtype,
                    p.shape,
                    p.start,
                    data[p.name][p.start * width : p.stop * width],
                )

        def publish(rank: int) -> Manifest:
            return self.ranks[rank].publish(version, lambda: slices(rank), None)

        with ThreadPoolExecutor(len(self.ranks)) as pool:
            return list(pool.map(publish, range(len(self.ranks))))


def file_of(tensors: dict[str, tuple[str, tuple[int, ...]]], data: dict[str, bytes]) -> bytes:
    header, specs = lay_out((name, *tensor) for name, tensor in tensors.items())
    return header + b"".join(data[spec.name] for spec in specs)


@settings(max_examples=8, deadline=None)
@given(cut=cuts(most_ranks=3))
def test_ranks_serve_the_file_of_one_publisher_and_hold_little_more_than_their_share(
    cut: Cut,
) -> None:
    said, tensors = cut
    plan = make_plan("policy 'p'", said, BLOCK)
    with ExitStack() as stack:
        together = Together(said, stack)
        for version in (1, 2):
            data = contents(tensors, version)
            whole = file_of(tensors, data)
            blocks = tuple(
                xxhash.xxh3_128_digest(whole[at : at + BLOCK]) for at in range(0, len(whole), BLOCK)
            )
            for manifest in together.publish(version, data):
                assert manifest.blocks == blocks
                assert manifest.digest == xxhash.xxh3_128_hexdigest(b"".join(blocks))
            for rank, publisher in enumerate(together.ranks):
                publisher.retain(frozenset())
                url = f"{publisher.endpoints[0]}/v1/weights/p/{version}/data"
                for first, last in plan.runs(rank):
                    assert (
                        ranged(url, first * BLOCK, last * BLOCK)
                        == whole[first * BLOCK : last * BLOCK]
                    )
        for rank, publisher in enumerate(together.ranks):
            shared = {
                fragment.start // BLOCK
                for parcel in [p for giver in range(len(said)) for p in plan.parcels(giver)]
                for fragment in parcel.fragments
                if rank in (parcel.giver, parcel.taker)
            }
            # Two versions, and what a publish moves: each block that it shares goes out or comes in.
            assert publisher.peak <= 2 * served_by(plan, rank) + 2 * len(shared) * BLOCK


def ranged(url: str, start: int, stop: int) -> bytes:
    headers = {"Authorization": f"Bearer {TOKEN}", "Range": f"bytes={start}-{stop - 1}"}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
        return bytes(answer.read())


ROWS = {"a": ("F32", (40, 4)), "b": ("BF16", (30, 10))}


def rows(ranks: int) -> list[list[ElementRange]]:
    said: list[list[ElementRange]] = [[] for _ in range(ranks)]
    for name, (dtype, shape) in ROWS.items():
        each = math.prod(shape) // ranks
        for rank in range(ranks):
            said[rank].append(ElementRange(name, dtype, shape, rank * each, (rank + 1) * each))
    return said


def test_a_rank_refuses_what_others_serve() -> None:
    with ExitStack() as stack:
        together = Together(rows(2), stack)
        together.publish(1, contents(ROWS, 1))
        plan = make_plan("", rows(2), BLOCK)
        url = f"{together.ranks[1].endpoints[0]}/v1/weights/p/1/data"
        other = plan.owners.index(0)
        with pytest.raises(urllib.error.HTTPError, match="404") as refused:
            ranged(url, other * BLOCK, (other + 1) * BLOCK)
        assert b"one of several sources" in refused.value.read()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            ranged(url, 0, plan.size)


def test_a_rank_that_fails_leaves_what_was(tmp_path: Path) -> None:
    with ExitStack() as stack:
        together = Together(rows(2), stack)
        data = contents(ROWS, 1)
        manifest = together.publish(1, data)[0]
        with pytest.raises(WeightsError, match="version 1 cannot follow version 1"):
            together.publish(1, data)
        with pytest.raises(WeightsError, match="every version must have the same slices"):
            together.publish(2, dict.fromkeys(data, b""))
        receiver = stack.enter_context(closing(HttpReceiver(tmp_path, TOKEN, streams=1)))
        told = Announcement(
            "p", 1, "http", together.ranks[0].endpoints, manifest.digest, manifest.size
        )
        assert receiver.fetch(told, 30).path.read_bytes() == file_of(ROWS, data)


def test_sources_travel_beside_a_manifest_that_readers_without_them_read() -> None:
    manifest = Manifest("p", 1, "full", 100, 64, (), (bytes(16), bytes(16)), "")
    digest = xxhash.xxh3_128_hexdigest(b"".join(manifest.blocks))
    manifest = Manifest("p", 1, "full", 100, 64, (), manifest.blocks, digest)
    sources = (Source("http://a:1", ((0, 1),)), Source("http://b:2", ((1, 2),)))
    body = encode(manifest, sources)
    told = Announcement("p", 1, "http", (), digest, 100)
    assert decode_manifest(body, told) == manifest
    assert decode(body, manifest) == sources
    assert decode(msgspec.msgpack.encode(manifest), manifest) == ()


@pytest.mark.parametrize("run", [(0, 3), (1, 1), (-1, 1), (2, 1)])
def test_sources_of_blocks_that_do_not_exist_are_refused(run: tuple[int, int]) -> None:
    manifest = Manifest("p", 1, "full", 100, 64, (), (bytes(16), bytes(16)), "")
    body = encode(manifest, [Source("http://a:1", (run,))])
    with pytest.raises(WireError, match="http://a:1 serves blocks"):
        decode(body, manifest)
    with pytest.raises(WireError, match="http://b:2 serves blocks 1 to 1, and names block 1 twice"):
        decode(
            encode(manifest, [Source("http://a:1", ((0, 2),)), Source("http://b:2", ((1, 2),))]),
            manifest,
        )
    with pytest.raises(WireError, match="names 4097 sources, at most 4096"):
        decode(encode(manifest, [Source("http://a:1", ())] * 4097), manifest)
    with pytest.raises(WireError, match="malformed sources"):
        decode(msgspec.msgpack.encode({"sources": [3]}), manifest)


def test_ranks_that_receivers_could_not_distinguish_are_refused() -> None:
    assert no_shards("127.0.0.1", None, one_host=True) == ""
    assert "one address for all" in no_shards("127.0.0.1", "https://proxy/x", one_host=True)
    assert "several hosts" in no_shards("0.0.0.0", "trainer-1", one_host=False)
    assert no_shards("0.0.0.0", "{host}.cluster", one_host=False) == ""
    assert own_name("a") == "a" and own_name(None) is None
    assert "{" not in str(own_name("{host}.cluster"))
