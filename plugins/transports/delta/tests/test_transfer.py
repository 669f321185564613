"""Which way a version takes, and that it is right whatever is wrong with the delta."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import xxhash

from astraflow_core.types import Announcement, ExportedTensor
from astraflow_plugin_delta.coding.codec import Codec
from astraflow_plugin_delta.coding.frame import DENSE, STEPS, Head, seal
from astraflow_plugin_delta.companion import DeltaCompanion
from astraflow_plugin_delta.link import (
    INDEX,
    LinkEntry,
    LinkHead,
    entry_of,
    open_index,
    open_link,
    pack_index,
    pack_link,
)
from astraflow_plugin_delta.log import LinkLog
from astraflow_plugin_delta.merge import merge
from astraflow_plugin_delta.paths import cheapest
from astraflow_weights.publish.publisher import HttpPublisher
from astraflow_weights.snapshot import Snapshot

DEADLINE_S = 20.0
BLOCK = 2 << 20


def test_two_files_take_turns_and_only_the_delta_is_fetched(rig: Any, history: Any) -> None:
    made, receiver = history(rig.publisher()), rig.receiver()
    sources, inodes = [], []
    for version in range(1, 7):
        source = receiver.fetch(made.publish(), DEADLINE_S)
        made.check(source, version)
        inodes.append(source.path.stat().st_ino)
        sources.append(source)
        if version > 1:
            made.check(sources[-2], version - 1)  # untouched while it is not released
            receiver.release(sources[-2])
            assert not sources[-2].path.exists()
            assert source.bytes_received < source.path.stat().st_size / 50
    assert inodes[2:] == [inodes[0], inodes[1], inodes[0], inodes[1]]


def test_a_publisher_says_how_large_and_how_dense_the_delta_is(rig: Any, history: Any) -> None:
    publisher = rig.publisher()
    made, receiver = history(publisher), rig.receiver()
    receiver.fetch(made.publish(), DEADLINE_S)
    assert publisher.figures == {}
    before = made.weights.copy()
    source = receiver.fetch(made.publish(), DEADLINE_S)
    changed = np.count_nonzero(made.weights != before)
    assert 0 < changed < made.weights.size
    assert publisher.figures["delta_density"] == pytest.approx(
        changed / made.weights.size, rel=1e-3
    )
    # What is fetched beside the delta is the manifest and the list of deltas.
    assert 0 <= source.bytes_received - publisher.figures["delta_bytes"] < 2000


def test_a_version_that_is_here_already_moves_no_weights(rig: Any, history: Any) -> None:
    made, receiver = history(rig.publisher()), rig.receiver()
    told = made.publish()
    receiver.fetch(told, DEADLINE_S)
    again = receiver.fetch(told, DEADLINE_S)
    made.check(again, 1)
    assert again.bytes_received < 1000


@pytest.mark.parametrize("released", [False, True], ids=["copied", "in-place"])
def test_a_base_that_decayed_in_memory_costs_its_block(
    rig: Any, history: Any, released: bool, caplog: pytest.LogCaptureFixture
) -> None:
    made, receiver = history(rig.publisher()), rig.receiver()
    source = receiver.fetch(made.publish(), DEADLINE_S)
    with source.path.open("r+b") as file:
        file.seek(BLOCK + 1000)
        byte = file.read(1)[0]
        file.seek(BLOCK + 1000)
        file.write(bytes([byte ^ 4]))
    if released:
        receiver.release(source)
    update = receiver.fetch(made.publish(), DEADLINE_S)
    made.check(update, 2)
    assert BLOCK < update.bytes_received < 1.1 * BLOCK
    assert "1 blocks are wrong" in caplog.text and "block 1: its hash" in caplog.text


def test_beyond_the_history_a_version_comes_whole_and_the_log_says_why(
    rig: Any, history: Any, caplog: pytest.LogCaptureFixture
) -> None:
    made, receiver = history(rig.publisher(history=2)), rig.receiver()
    receiver.fetch(made.publish(), DEADLINE_S)
    for _ in range(3):
        told = made.publish()
    source = receiver.fetch(told, DEADLINE_S)
    made.check(source, 4)
    assert source.bytes_received > told.size
    assert "version 4 of policy 'solver' is fetched whole: no deltas lead to it" in caplog.text


@pytest.mark.slow
def test_a_change_of_everything_comes_whole_in_one_piece(
    rig: Any, history: Any, caplog: pytest.LogCaptureFixture
) -> None:
    made, receiver = history(rig.publisher()), rig.receiver()
    receiver.fetch(made.publish(), DEADLINE_S)
    made.weights[:] = np.random.default_rng(9).integers(0, 2**16, made.weights.size)
    told = made.publish(0.0)
    source = receiver.fetch(told, DEADLINE_S)
    made.check(source, 2)
    assert source.bytes_received < 1.01 * told.size
    assert "is fetched whole" in caplog.text


def test_a_restarted_trainer_sends_its_first_version_whole(rig: Any, history: Any) -> None:
    first, receiver = history(rig.publisher()), rig.receiver()
    receiver.fetch(first.publish(), DEADLINE_S)
    again = history(rig.publisher())
    again.weights[:1000] += 1
    again.publish()
    told = again.publish(0.5)
    source = receiver.fetch(told, DEADLINE_S)
    again.check(source, 2)
    assert source.bytes_received > told.size


def test_a_trainer_whose_export_failed_continues_with_deltas(rig: Any, history: Any) -> None:
    made, receiver = history(rig.publisher()), rig.receiver()
    receiver.fetch(made.publish(), DEADLINE_S)
    with pytest.raises(ZeroDivisionError):
        made.publisher.publish(2, (ExportedTensor("w", "U8", (1,), b"x") for _ in [1 / 0]))
    source = receiver.fetch(made.publish(), DEADLINE_S)
    made.check(source, 2)
    assert source.bytes_received < source.path.stat().st_size / 50


class Hostile(DeltaCompanion):
    """Puts something else in the place of each version's deltas."""

    def __init__(self, codec: Codec, lie: str) -> None:
        super().__init__(codec, 16)
        self.lie = lie

    def objects(self, snapshot: Snapshot) -> Mapping[str, bytes]:
        real = dict(super().objects(snapshot))
        entries = open_index(real[INDEX])
        if not entries:
            return real
        (entry,), manifest = entries, snapshot.manifest
        link = real[entry.name]
        opened = open_link(memoryview(link), entry)
        frames = [(block, bytes(frame)) for block, each in opened.frames.items() for frame in each]

        def told(link: bytes, entry: LinkEntry | None = None) -> Mapping[str, bytes]:
            entry = entry or entry_of(opened.head, link)
            return {INDEX: pack_index([entry]), entry.name: link}

        def linked(frames: list[tuple[int, bytes]]) -> Mapping[str, bytes]:
            return told(pack_link(opened.head, frames))

        def entry_with(**changes: Any) -> LinkEntry:
            fields = {name: getattr(entry, name) for name in LinkEntry.__struct_fields__}
            return LinkEntry(**(fields | changes))

        elements = BLOCK // 2
        zeros, ones = bytes(8 << 20), b"\xff" * (elements // 8)
        magnitudes = Head(
            STEPS, 2, elements, elements, elements, gap_bytes=len(ones), magnitude_bytes=len(ones)
        )
        return {
            "no list": dict,
            "list of noise": lambda: {INDEX: b"\xff" * 100},
            "list without end": lambda: {INDEX: bytes(2 << 20)},
            "size too large": lambda: told(link, entry_with(size=len(link) + 1)),
            "size too small": lambda: told(link[:-7], entry_with(size=len(link) - 7)),
            "size of petabytes": lambda: told(link, entry_with(size=1 << 50)),
            "negative size": lambda: told(link, entry_with(size=-5)),
            "link missing": lambda: {INDEX: real[INDEX]},
            "link of noise": lambda: told(bytes(len(link))),
            "another base": lambda: told(
                pack_link(
                    LinkHead("solver", 1, "0" * 32, 2, manifest.digest, manifest.size, BLOCK, b""),
                    frames,
                )
            ),
            "frames missing": lambda: linked(frames[:-1]),
            "frames swapped": lambda: linked([(frames[1][0], frames[0][1]), frames[1]]),
            "frames twice": lambda: linked(frames + frames),
            "frame torn": lambda: linked([(frames[0][0], frames[0][1][:-3]), *frames[1:]]),
            "frame of zeros": lambda: linked(
                [(0, seal(Head(DENSE, 2, elements, elements), bytes(BLOCK), 0)), *frames[1:]]
            ),
            "block outside": lambda: linked([*frames, (1 << 31, frames[0][1])]),
            "bomb": lambda: linked(
                [(0, seal(Head(STEPS, 2, elements, elements, gap_bytes=len(zeros)), zeros, 0))]
            ),
            "bomb of magnitudes": lambda: linked([(0, seal(magnitudes, ones + zeros + ones, 0))]),
        }[self.lie]()


LIES = [
    "no list", "list of noise", "list without end", "size too large", "size too small",
    "size of petabytes", "negative size", "link missing", "link of noise", "another base",
    "frames missing", "frames swapped", "frames twice", "frame torn", "frame of zeros",
    "block outside", "bomb", "bomb of magnitudes",
]  # fmt: skip


@pytest.mark.parametrize("released", [False, True], ids=["copied", "in-place"])
@pytest.mark.parametrize("lie", LIES)
def test_whatever_a_publisher_says_of_its_deltas_the_version_is_right(
    rig: Any, history: Any, numpy_codec: Codec, lie: str, released: bool
) -> None:
    companion = Hostile(numpy_codec, lie)
    with (
        closing(companion),
        closing(
            HttpPublisher(
                "solver", "a-token-of-the-run", host="127.0.0.1", port=0, advertise=None,
                companion=companion,
            )
        ) as publisher,
    ):  # fmt: skip
        made, receiver = history(publisher, 2), rig.receiver()
        source = receiver.fetch(made.publish(), DEADLINE_S)
        if released:
            receiver.release(source)
        made.check(receiver.fetch(made.publish(), DEADLINE_S), 2)


# --- the log ---------------------------------------------------------------------------------------


def versions_of(count: int, size: int = 1 << 14) -> list[np.ndarray[Any, Any]]:
    generator = np.random.default_rng(5)
    found = [generator.integers(0, 2**16, size, dtype=np.uint16)]
    for _ in range(count):
        found.append(found[-1].copy())
        where = generator.random(size) < 0.05
        found[-1][where] += generator.choice([1, 2**16 - 1], where.sum()).astype(np.uint16)
    return found


def head_of(base: int, version: int, size: int) -> LinkHead:
    digests = [xxhash.xxh3_128_hexdigest(b"%d" % each) for each in (base, version)]
    return LinkHead("solver", base, digests[0], version, digests[1], 2 * size, 1 << 13, b"")


def link_between(
    codec: Codec, states: list[Any], base: int, version: int
) -> tuple[LinkHead, bytes]:
    head = head_of(base, version, states[0].size)
    frames = []
    for block in range(4):
        part = slice(block << 12, (block + 1) << 12)
        old, new = (memoryview(states[v][part].view(np.uint8)) for v in (base, version))
        if frame := codec.encode(codec.diff(old, new, 2), new, block):
            frames.append((block, frame))
    return head, pack_link(head, frames)


def test_merged_links_lead_where_their_parts_lead_and_are_smaller(numpy_codec: Codec) -> None:
    states = versions_of(8)
    log = LinkLog(16)
    for version in range(1, 9):
        log.add(*link_between(numpy_codec, states, version - 1, version), 1 << 30)
        log.merge(numpy_codec)
    objects = log.objects()
    entries = {(e.base, e.version): e for e in open_index(objects[INDEX])}
    assert {pair for pair in entries if pair[1] - pair[0] > 1} == {
        (0, 2), (2, 4), (4, 6), (6, 8), (0, 4), (4, 8), (0, 8),
    }  # fmt: skip
    for (base, version), entry in entries.items():
        state = states[base].copy()
        link = open_link(memoryview(objects[entry.name]), entry)
        for block, frames in link.frames.items():
            for frame in frames:
                view = memoryview(state[block << 12 : (block + 1) << 12].view(np.uint8))
                numpy_codec.apply(frame, view, block)
        assert (state == states[version]).all(), (base, version)
    singles = sum(entries[v - 1, v].size for v in range(1, 9))
    assert entries[0, 8].size < 0.9 * singles


def test_merging_keeps_frames_that_hold_values_in_their_order(numpy_codec: Codec) -> None:
    states = versions_of(3)
    states[2][:] = np.random.default_rng(1).integers(0, 2**16, states[2].size)
    states[3][:] = states[2]
    states[3][::50] += 1
    links = []
    for version in (1, 2, 3):
        head, data = link_between(numpy_codec, states, version - 1, version)
        links.append(open_link(memoryview(data), entry_of(head, data)))
    merged, data = merge(numpy_codec, links)
    reread = open_link(memoryview(data), entry_of(merged.head, data))
    state = states[0].copy()
    for block, frames in reread.frames.items():
        assert len(frames) == 2  # the steps before the values are left out
        for frame in frames:
            view = memoryview(state[block << 12 : (block + 1) << 12].view(np.uint8))
            numpy_codec.apply(frame, view, block)
    assert (state == states[3]).all()


def test_the_log_is_bounded_in_versions_and_in_bytes() -> None:
    log = LinkLog(3)
    for version in range(1, 9):
        log.add(head_of(version - 1, version, 1000), bytes(100), 1000)
        assert len(open_index(log.objects()[INDEX])) <= 3
    for version in range(9, 15):
        log.add(head_of(version - 1, version, 1000), bytes(900), 1000)
        assert sum(map(len, log.objects().values())) < 2000 + 500
    log.add(head_of(14, 15, 1000), bytes(5000), 1000)
    assert open_index(log.objects()[INDEX]) == []
    log.add(
        head_of(77, 78, 1000), bytes(10), 1000
    )  # not the version after: an older chain is of no use
    assert [e.name for e in open_index(log.objects()[INDEX])] == ["link-77-78"]


def told_entry(base: int, version: int, size: int, digest: str = "") -> LinkEntry:
    return LinkEntry(base, str(base), version, digest or str(version), size, bytes([base, version]))


def test_the_cheapest_path_counts_bytes_to_fetch() -> None:
    entries = [
        told_entry(1, 2, 10), told_entry(2, 3, 10), told_entry(3, 4, 10), told_entry(4, 5, 10),
        told_entry(2, 4, 15), told_entry(1, 5, 100),
    ]  # fmt: skip

    def names(held: list[int], cached: set[bytes] = frozenset(), wanted: int = 5) -> Any:  # type: ignore[assignment]
        path = cheapest(entries, [(v, str(v)) for v in held], cached, (wanted, str(wanted)))
        return path and (path.start[0], [e.version for e in path.links], path.cost)

    assert names([1]) == (1, [2, 4, 5], 35)
    assert names([1, 3]) == (3, [4, 5], 20)
    assert names([2], {bytes([2, 3]), bytes([3, 4])}) == (2, [3, 4, 5], 10)
    assert names([3, 5]) == (5, [], 0)
    assert names([5], wanted=3) is None
    assert names([6]) is None
    path = cheapest(entries, [(4, "other weights")], set(), (5, "5"))
    assert path is None


def test_announcements_name_the_policy_of_the_publisher(rig: Any, history: Any) -> None:
    told: Announcement = history(rig.publisher()).publish()
    assert told.policy == "solver" and told.endpoints[0].startswith("http://127.0.0.1:")


@pytest.fixture(autouse=True)
def _log_everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
