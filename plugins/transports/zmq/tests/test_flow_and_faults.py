"""Keys, credit, and peers that violate the protocol."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq
from pydantic import ValidationError
from safetensors import deserialize

from astraflow_core.errors import UserError, WeightsError
from astraflow_core.types import (
    Announcement,
    ComponentContext,
    ExportedTensor,
    Manifest,
    RunInfo,
)
from astraflow_plugin_zmq import server as server_module
from astraflow_plugin_zmq import source as source_module
from astraflow_plugin_zmq.config import ZmqConfig
from astraflow_plugin_zmq.keys import secure
from astraflow_plugin_zmq.messages import MAX_CREDIT, MAX_REQUEST
from astraflow_plugin_zmq.publisher import ZmqPublisher
from astraflow_plugin_zmq.transport import ZmqTransport
from astraflow_weights.fetch.landing import BlockReceiver
from astraflow_weights.snapshot import BLOCK_SIZE, Snapshotter

TOKEN = "a-token-of-the-run"
DEADLINE_S = 30.0
Answer = Callable[[list[bytes]], list[bytes] | None]


def model(seed: int) -> list[ExportedTensor]:
    """Random bf16 weights of three blocks."""
    data = np.random.default_rng(seed).integers(0, 2**16, (1536, 2000), dtype=np.uint16)
    return [ExportedTensor("a.weight", "BF16", (1536, 2000), data)]


def content(path: Path) -> bytes:
    return bytes(dict(deserialize(path.read_bytes()))["a.weight"]["data"])


def raw(seed: int) -> bytes:
    return np.asarray(model(seed)[0].data).tobytes()


def told(manifest: Manifest, *endpoints: str) -> Announcement:
    return Announcement(
        "solver", manifest.version, "zmq", endpoints, manifest.digest, manifest.size
    )


class Rig:
    """Halves, raw sockets and false publishers that are closed when the test ends."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._stack, self._folder = stack, folder

    def transport(self, token: str = TOKEN, **keys: Any) -> ZmqTransport:
        run = RunInfo("test", 0, 1, 0, ("solver",), self._folder)
        context = ComponentContext(run, "raas", "solver", 0, self._folder / "state", token)
        return ZmqTransport(ZmqConfig(**keys), context)

    def publisher(self, **keys: Any) -> ZmqPublisher:
        return self._stack.enter_context(closing(self.transport(**keys).publisher()))

    def receiver(self, **keys: Any) -> BlockReceiver:
        return self._stack.enter_context(closing(self.transport(**keys).receiver()))

    def socket(self, kind: int, *, server: bool = False, **options: int) -> zmq.Socket[bytes]:
        context = zmq.Context()
        self._stack.callback(context.destroy, linger=0)
        made = context.socket(kind)
        for name, value in options.items():
            setattr(made, name, value)
        secure(made, TOKEN, server=server)
        return made

    def false_publisher(self, answer: Answer) -> str:
        """An address where requests are answered by ``answer`` (``None``: not at all)."""
        socket = self.socket(zmq.ROUTER, server=True)
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        over = threading.Event()

        def serve() -> None:
            while not over.is_set():
                if socket.poll(20):
                    peer, *request = socket.recv_multipart()
                    said = answer(request)
                    if said is not None:
                        socket.send_multipart([peer, *said])

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        self._stack.callback(thread.join)
        self._stack.callback(over.set)
        return f"tcp://127.0.0.1:{port}"


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with ExitStack() as stack:
        yield Rig(stack, tmp_path)


@pytest.mark.parametrize("token", ["another", ""])
def test_wrong_keys_are_named_long_before_the_deadline(rig: Rig, token: str) -> None:
    publisher, receiver = rig.publisher(), rig.receiver(token=token)
    announced = told(publisher.publish(1, model(1)), *publisher.endpoints)
    with pytest.raises(WeightsError, match="refused the keys: the token belongs to another run"):
        receiver.fetch(announced, 600)


def test_an_unreachable_server_is_named(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "FAILURES", 1)
    publisher, receiver = rig.publisher(), rig.receiver()
    announced = told(publisher.publish(1, model(1)), *publisher.endpoints)
    publisher.close()
    with pytest.raises(WeightsError, match="nothing listens there"):
        receiver.fetch(announced, 600)
    for endpoint in ("http://127.0.0.1:1", "tcp://127.0.0.1", "ipc:///tmp/x", "tcp://:5"):
        with pytest.raises(WeightsError, match="expected an address such as tcp://host:port"):
            receiver.fetch(replace(announced, endpoints=(endpoint,)), DEADLINE_S)
    for policy in ("../solver", "", "S"):
        with pytest.raises(WeightsError, match="malformed announcement"):
            receiver.fetch(replace(announced, policy=policy), DEADLINE_S)


def test_a_receiver_that_takes_nothing_holds_its_credit_only(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher, receiver = rig.publisher(), rig.receiver()
    manifest = publisher.publish(1, model(1))
    refused = threading.Event()
    sent: list[bytes] = []
    send = server_module.BlockServer._send

    def counted(server: Any, peer: bytes, answer: list[Any]) -> None:
        sent.append(peer)
        send(server, peer, answer)

    monkeypatch.setattr(server_module.BlockServer, "_send", counted)
    monkeypatch.setattr(server_module._log, "debug", lambda *_: refused.set())
    greedy = rig.socket(zmq.DEALER, rcvhwm=1, sndhwm=0, rcvbuf=1 << 16)
    greedy.connect(publisher.endpoints[0])
    before = resident()
    for _ in range(8 * MAX_CREDIT):
        greedy.send_multipart([b"block", b"1", b"greedy", b"0"])
    assert refused.wait(DEADLINE_S), "the publisher queued whatever was asked for"
    source = receiver.fetch(told(manifest, *publisher.endpoints), DEADLINE_S)
    assert content(source.path) == raw(1)
    # What was queued, and some for the kernel's buffers and for both ends of this one process.
    assert resident() - before < (2 * MAX_CREDIT + 16) * BLOCK_SIZE
    assert greedy.recv_multipart()[:2] == [b"block", b"0"]


def test_a_slow_receiver_across_twenty_publishes(rig: Rig) -> None:
    publisher, receiver = rig.publisher(), rig.receiver()
    publisher.publish(1, model(1))
    slow = rig.socket(zmq.DEALER, rcvtimeo=20_000)
    slow.connect(publisher.endpoints[0])
    slow.send_multipart([b"manifest", b"1", b"slow"])
    manifest = msgspec.msgpack.decode(slow.recv_multipart()[1], type=Manifest)
    for version in range(2, 22):
        newest = publisher.publish(version, model(version))
        publisher.retain(frozenset())
    blocks = []
    for index in range(len(manifest.blocks)):
        slow.send_multipart([b"block", b"1", b"slow", str(index).encode()])
        blocks += slow.recv_multipart()[2:]
    assert b"".join(blocks).endswith(raw(1))
    slow.send_multipart([b"leave", b"1", b"slow"])
    slow.send_multipart([b"manifest", b"1", b"another"])
    assert slow.recv_multipart() == [
        b"refused",
        b"version 1 is not available; available versions: 21",
    ]
    source = receiver.fetch(told(newest, *publisher.endpoints), DEADLINE_S)
    assert content(source.path) == raw(21)


def test_malformed_requests_are_refused_and_disturb_no_one(rig: Rig) -> None:
    publisher, receiver = rig.publisher(), rig.receiver()
    manifest = publisher.publish(1, model(1))
    peer = rig.socket(zmq.DEALER, rcvtimeo=20_000)
    peer.connect(publisher.endpoints[0])
    for request in (
        [b""],
        [b"manifest"],
        [b"manifest", b"x", b"r"],
        [b"manifest", b"-1", b"r"],
        [b"manifest", b"9" * 19, b"r"],
        [b"manifest", b"1", b"\xff"],
        [b"block", b"1", b"r"],
        [b"block", b"1", b"r", b"3"],
        [b"block", b"1", b"r", b"-1"],
        [b"block", b"1", b"r", b"../x"],
        [b"nothing", b"1", b"r"],
        [b"block", b"2", b"r", b"0"],
        [b"x"] * 50,
    ):
        peer.send_multipart(request)
        assert peer.recv_multipart()[0] == b"refused"
    peer.send_multipart([b"manifest", b"1", b"r" * (MAX_REQUEST + 1)])
    source = receiver.fetch(told(manifest, *publisher.endpoints), DEADLINE_S)
    assert content(source.path) == raw(1)


@pytest.mark.slow
def test_answers_that_lie_are_errors(rig: Rig) -> None:
    receiver = rig.receiver()
    snapshot = Snapshotter("solver").take(1, model(1), None)
    manifest = snapshot.manifest
    honest = [
        bytes(snapshot.data[at : at + BLOCK_SIZE]) for at in range(0, manifest.size, BLOCK_SIZE)
    ]

    def lying(**changes: Any) -> list[bytes]:
        return [b"manifest", msgspec.msgpack.encode(replace(manifest, **changes))]

    def blocks(of: Callable[[bytes], list[bytes] | None]) -> Answer:
        def answer(request: list[bytes]) -> list[bytes] | None:
            if request[0] == b"manifest":
                return [b"manifest", snapshot.encoded]
            return of(request[3]) if request[0] == b"block" else None

        return answer

    cases: list[tuple[Answer, str]] = [
        (lambda _: [b"manifest", b"\xc1"], "malformed manifest"),
        (lambda _: lying(size=1 << 50), "blocks of"),
        (lambda _: lying(block_size=0), "blocks of"),
        (lambda _: lying(version=2), "version 2"),
        (lambda _: lying(blocks=manifest.blocks[::-1]), "as announced"),
        (lambda _: [b"refused", b"\xff" * 9], "could not be fetched"),
        (lambda _: [b"nonsense"], "malformed reply"),
        (lambda _: None, "sent nothing"),
        (lambda _: [b"manifest", bytes(65 << 20)], "connection ended|in a row"),
        (blocks(lambda index: [b"block", index, honest[0]]), r"block [12] arrived corrupted 4 times"),
        (blocks(lambda index: [b"block", index, b""]), r"block \d arrived corrupted 4 times"),
        (blocks(lambda index: [b"block", index, honest[int(index)] + b"x"]), "corrupted 4 times"),
        (blocks(lambda index: [b"block", b"x", b""]), "malformed reply"),
        (blocks(lambda index: [b"block"]), "malformed reply"),
        (blocks(lambda index: [b"block", b"77", honest[0]]), "sent nothing"),
        (blocks(lambda index: None), "sent nothing"),
        (blocks(lambda index: [b"refused", b"dropped"]), "dropped"),
    ]  # fmt: skip
    for answer, words in cases:
        with pytest.MonkeyPatch.context() as patch, pytest.raises(WeightsError, match=words):
            if words == "sent nothing":
                patch.setattr(source_module, "STALL_S", 0.3)
            patch.setattr(source_module, "FAILURES", 1)
            receiver.fetch(told(manifest, rig.false_publisher(answer)), 3 * DEADLINE_S)
    right = rig.false_publisher(blocks(lambda index: [b"block", index, honest[int(index)]]))
    assert content(receiver.fetch(told(manifest, right), DEADLINE_S).path) == raw(1)


def test_another_publisher_continues_where_one_failed(rig: Rig) -> None:
    publisher, receiver = rig.publisher(), rig.receiver()
    manifest = publisher.publish(1, model(1))
    snapshot = Snapshotter("solver").take(1, model(1), None)

    def half(request: list[bytes]) -> list[bytes] | None:
        if request[0] == b"manifest":
            return [b"manifest", snapshot.encoded]
        if request[-1] == b"0":
            return [b"block", b"0", bytes(snapshot.data[:BLOCK_SIZE])]
        return [b"refused", b"no more"]

    announced = told(manifest, rig.false_publisher(half), *publisher.endpoints)
    source = receiver.fetch(announced, DEADLINE_S)
    assert content(source.path) == raw(1)
    assert source.bytes_received == manifest.size


def test_listening_where_it_must_not(rig: Rig) -> None:
    with pytest.raises(UserError, match="without a token"):
        rig.transport(token="", host="0.0.0.0", advertise="here").publisher()
    publisher = rig.publisher()
    with pytest.raises(UserError, match=r"cannot listen on 127\.0\.0\.1"):
        rig.publisher(port=int(publisher.endpoints[0].rpartition(":")[2]))
    with pytest.raises(ValidationError, match="set advertise"):
        ZmqConfig(host="0.0.0.0")
    assert rig.publisher(advertise="localhost").endpoints[0].startswith("tcp://localhost:")


def test_close_ends_a_fetch(rig: Rig) -> None:
    receiver = rig.receiver()
    asked = threading.Event()

    def silent(request: list[bytes]) -> None:
        asked.set()

    manifest = Snapshotter("solver").take(1, model(1), None).manifest
    announced = told(manifest, rig.false_publisher(silent))
    caught: list[BaseException] = []

    def fetch() -> None:
        try:
            receiver.fetch(announced, 60)
        except WeightsError as error:
            caught.append(error)

    thread = threading.Thread(target=fetch)
    thread.start()
    assert asked.wait(DEADLINE_S)
    began = time.monotonic()
    receiver.close()
    thread.join(DEADLINE_S)
    assert "receiver was closed" in str(caught[0])
    assert time.monotonic() - began < 30 and not receiver.folder.path.exists()


def resident() -> int:
    """Bytes of this process."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Rss:"))
