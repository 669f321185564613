"""The members of broadcasts: joining, leaving and deadlines, with members in this process."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from astraflow_core.errors import WeightsError
from astraflow_core.types import Announcement, ComponentContext, ExportedTensor, Manifest, RunInfo
from astraflow_plugin_collective import round as rounds
from astraflow_plugin_collective.config import CollectiveConfig
from astraflow_plugin_collective.publisher import CollectivePublisher
from astraflow_plugin_collective.transport import CollectiveTransport
from astraflow_torch_weights import group as groups
from astraflow_torch_weights.buckets import receive, tensors_of
from astraflow_torch_weights.group import follow
from astraflow_weights.buckets import cut
from astraflow_weights.direct.receiver import DirectHttpReceiver

pytestmark = pytest.mark.timeout(90)
LONG_S = 60.0


def model(seed: int) -> list[ExportedTensor]:
    random = np.random.default_rng(seed)
    shapes = {"a": (700, 500), "b": (), "c": (600, 512), "d": (0,), "e": (9,)}
    return [
        ExportedTensor(n, "F32", s, np.asarray(random.normal(size=s), np.float32))
        for n, s in shapes.items()
    ]


def told(publisher: CollectivePublisher, manifest: Manifest) -> Announcement:
    return Announcement(
        "p", manifest.version, "x", publisher.endpoints, manifest.digest, manifest.size
    )


Make = Callable[..., tuple[CollectivePublisher, DirectHttpReceiver]]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    with ExitStack() as stack:

        def made(**keys: Any) -> tuple[CollectivePublisher, DirectHttpReceiver]:
            info = RunInfo("test", 0, 1, 1, ("p",), tmp_path)
            context = ComponentContext(info, "trainer", "p", 0, tmp_path, "secret")
            keys = {"bucket_mb": 1, "window_s": LONG_S, **keys}
            transport = CollectiveTransport(CollectiveConfig(**keys), context)
            publisher = stack.enter_context(closing(transport.publisher()))
            return publisher, stack.enter_context(closing(transport.receiver()))

        yield made


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as made:
        yield made


def take_part(
    receiver: DirectHttpReceiver, announcement: Announcement, member: str, deadline_s: float = 20
) -> dict[str, np.ndarray]:
    """All that an engine does."""
    delivery = receiver.meet(announcement, member, 1, LONG_S)
    assert delivery.rendezvous is not None
    with closing(follow(delivery.rendezvous, 0, deadline_s)) as group:
        buffers = receive(group, delivery.version, delivery.buckets, torch.device("cpu"))
    return {name: t.numpy() for name, t in tensors_of(delivery.buckets, buffers)}


def broadcast(
    make: Make, pool: ThreadPoolExecutor, members: tuple[str, ...], version: int = 2, **keys: Any
) -> tuple[CollectivePublisher, Announcement, list[Future[dict[str, np.ndarray]]]]:
    """A version whose window ends when all of ``members`` are there."""
    publisher, receiver = make(**keys)
    announcement = expecting(publisher, version, members)
    return (
        publisher,
        announcement,
        [pool.submit(take_part, receiver, announcement, name) for name in members],
    )


def expecting(
    publisher: CollectivePublisher, version: int, members: tuple[str, ...]
) -> Announcement:
    """Publish ``model(version)`` after a version for which ``members`` joined."""
    publisher.publish(version - 1, model(version - 1))
    assert publisher._round is not None
    publisher._round.members.update(dict.fromkeys(members, 1))
    return told(publisher, publisher.publish(version, model(version)))


def same(found: dict[str, np.ndarray], version: int) -> bool:
    return {n: (v.shape, v.tobytes()) for n, v in found.items()} == {
        t.name: (t.shape, t.data.tobytes()) for t in model(version)
    }


def test_all_who_joined_get_every_tensor_and_the_next_window_waits_for_them(
    make: Make, pool: ThreadPoolExecutor
) -> None:
    publisher, _, parts = broadcast(make, pool, ("one", "two", "three"))
    assert all(same(part.result(40), 2) for part in parts)
    publisher.publish(3, model(3))
    assert publisher._round is not None
    assert publisher._round.expected == {"one", "two", "three"}


def test_a_late_receiver_gets_an_error_and_fetches(make: Make, pool: ThreadPoolExecutor) -> None:
    _, announcement, (part,) = broadcast(make, pool, ("one",))
    assert same(part.result(40), 2)
    _, receiver = make()
    with pytest.raises(WeightsError, match="409: version 2: its window has ended"):
        receiver.meet(announcement, "late", 1, 20)
    source = receiver.fetch(announcement, 20)
    assert source.digest == announcement.digest
    with pytest.raises(WeightsError, match="no direct delivery of version 1"):
        receiver.meet(replace(announcement, version=1), "late", 1, 20)


def test_a_new_version_ends_the_window_of_the_one_before(
    make: Make, pool: ThreadPoolExecutor
) -> None:
    publisher, receiver = make()
    first = told(publisher, publisher.publish(1, model(1)))
    waiting = pool.submit(receiver.meet, first, "one", 1, LONG_S)
    while not publisher._round.members:  # type: ignore[union-attr]
        threading.Event().wait(0.01)
    publisher.publish(2, model(2))
    with pytest.raises(WeightsError, match="superseded by version 2"):
        waiting.result(40)


def test_a_member_that_joined_and_does_not_come_is_named_to_all(
    make: Make, pool: ThreadPoolExecutor
) -> None:
    publisher, receiver = make(deadline_s=6)
    announcement = expecting(publisher, 2, ("here", "gone"))
    part = pool.submit(take_part, receiver, announcement, "here")
    receiver.meet(announcement, "gone", 1, LONG_S)
    with pytest.raises(WeightsError, match=r"did not reach the rendezvous: gone$"):
        part.result(40)


@pytest.mark.parametrize("bucket", [0, 1])
def test_a_flipped_bit_is_refused_by_all(
    make: Make, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, bucket: int
) -> None:
    real, sent = rounds.send, []

    def flip(group: groups.BroadcastGroup, data: memoryview, backend: str) -> None:
        sent.append(bytearray(data))
        if len(sent) == bucket + 1:
            sent[-1][len(data) // 2] ^= 1
        real(group, memoryview(sent[-1]), backend)

    monkeypatch.setattr(rounds, "send", flip)
    _, announcement, parts = broadcast(make, pool, ("one", "two"))
    for part in parts:
        with pytest.raises(WeightsError, match=f"version 2 arrived corrupted: bucket {bucket} has"):
            part.result(40)
    _, receiver = make()
    assert receiver.fetch(announcement, 20).digest == announcement.digest


def test_a_bit_that_flips_in_the_snapshot_is_not_sent(
    make: Make, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher, receiver = make()
    publisher.publish(1, model(1))
    assert publisher._round is not None
    publisher._round.members["one"] = 1
    announcement = told(publisher, publisher.publish(2, model(2)))
    with publisher.reading(2) as snapshot:
        snapshot.data[len(snapshot.data) // 2] ^= 1
    with pytest.raises(WeightsError, match="block 0 of version 2 changed in the trainer's memory"):
        receiver.meet(announcement, "one", 1, LONG_S)


def test_a_member_that_leaves_aborts_the_broadcast_for_all(
    make: Make, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher, receiver = make(deadline_s=8)
    announcement = expecting(publisher, 2, ("one", "leaver"))

    def leave() -> None:
        delivery = receiver.meet(announcement, "leaver", 1, LONG_S)
        assert delivery.rendezvous is not None
        with closing(follow(delivery.rendezvous, 0, 20)) as group:
            group.broadcast(torch.empty(delivery.buckets[0].size, dtype=torch.uint8))

    left = pool.submit(leave)
    part = pool.submit(take_part, receiver, announcement, "one", 8)
    left.result(40)
    # The first in the tree may have had all of it before the other left.
    try:
        assert same(part.result(40), 2)
    except WeightsError as error:
        assert "interrupted" in str(error)
    assert receiver.fetch(announcement, 20).digest == announcement.digest


def test_strangers_and_malformed_requests_are_refused(make: Make) -> None:
    publisher, _ = make()
    publisher.publish(1, model(1))
    where = json.loads(publisher._desk.where("127.0.0.1"))["ask"]
    good = {"Authorization": "Bearer secret"}
    asked = {"member": "x", "workers": 1}
    for status, path, headers, body in (
        (401, "/1", {}, asked),
        (401, "/1", {"Authorization": "Bearer other"}, asked),
        (404, "/7", good, asked),
        (404, "x/1", good, asked),
        (400, "/1", good, {"member": "x", "workers": -1}),
        (409, "/1", good, {"member": "x", "workers": 0}),
        (404, "/1/ticket", good, asked),
        (400, "/1", good, {"member": "", "workers": 1}),
        (400, "/1", good, ["x"]),
        (413, "/1", good, {"member": "x" * 5000, "workers": 1}),
    ):
        answer = httpx.post(f"{where}{path}", headers=headers, json=body, timeout=20)
        assert answer.status_code == status and answer.json()["error"], (path, body)
    assert publisher._round is not None and not publisher._round.members


def test_adapters_are_not_broadcast(make: Make) -> None:
    publisher, receiver = make()
    manifest = publisher.publish(1, model(1), base="b" * 32)
    with pytest.raises(WeightsError, match="no direct delivery of version 1"):
        receiver.meet(told(publisher, manifest), "x", 1, 20)


def test_no_bucket_is_empty_and_all_together_are_the_version(make: Make) -> None:
    publisher, _ = make()
    tensors = publisher.publish(1, model(1)).tensors
    for most in (1, 40, 1 << 20, 1 << 30):
        runs = cut(tensors, most)
        assert tuple(spec for run in runs for spec in run) == tensors
        sizes = [run[-1].end - run[0].start for run in runs]
        assert all(sizes) and (max(sizes) <= most or most < (1 << 21))
