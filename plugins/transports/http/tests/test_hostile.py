"""A peer that replies with anything at all: every outcome is an error with the reason, in time."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from astraflow_core.errors import WeightsError
from astraflow_core.types import Manifest
from astraflow_weights.fetch import client
from astraflow_weights.snapshot import Snapshotter

Script = Callable[[bytes], bytes]


@contextmanager
def peer(script: Script) -> Iterator[str]:
    """Listens on loopback; each request's head is answered by what ``script`` makes of it, then the
    connection ends."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                head = b""
                while b"\r\n\r\n" not in head:
                    piece = connection.recv(65536)
                    if not piece:
                        break
                    head += piece
                try:
                    connection.sendall(script(head))
                except OSError:
                    continue

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


def ok(body: bytes, length: int | None = None, status: str = "200 OK", extra: str = "") -> bytes:
    size = len(body) if length is None else length
    return f"HTTP/1.1 {status}\r\nContent-Length: {size}\r\n{extra}\r\n".encode() + body


def only_manifest(body: bytes, data: bytes = b"") -> Script:
    def answer(head: bytes) -> bytes:
        return ok(body) if b"/manifest " in head else data

    return answer


@pytest.fixture
def manifest(model: Any) -> Manifest:
    return Snapshotter("solver").take(1, model(blocks=1), None).manifest


def encoded(manifest: Manifest, **changes: Any) -> bytes:
    return msgspec.msgpack.encode(replace(manifest, **changes))


DEEP = b"\x81\xa1x" + b"\x91" * 100_000 + b"\xc0"
HEADS = {
    "no HTTP": (b"SSH-2.0-OpenSSH\r\n\r\n", "no HTTP answer"),
    "endless head": (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 50_000, "a head of more than"),
    "no length": (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 100, "has None bytes"),
    "chunked": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n", "has None bytes"),
    "huge": (ok(b"", 1 << 40), f"has {1 << 40} bytes, at most"),
    "negative": (b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", "has None bytes"),
    "short": (ok(b"x" * 10, 100), "the connection ended early"),
    "redirect": (ok(b"", status="302 Found", extra="Location: http://127.0.0.1:1/\r\n"), "302"),
    "empty": (b"", "the connection ended early"),
    "not msgpack": (ok(b"\xc1\xff\x00"), "malformed manifest"),
    "deep": (ok(DEEP), "malformed manifest"),
    "four billion blocks": (ok(b"\x81\xa6blocks\xdd\xff\xff\xff\xff"), "malformed manifest"),
    "deep reason": (ok(b"[" * 4000, status="404 Not Here"), "404: Not Here"),
    "gzip": (ok(b"\x1f\x8b\x08", extra="Content-Encoding: gzip\r\n"), "malformed manifest"),
}  # fmt: skip


@pytest.mark.parametrize("case", HEADS)
def test_an_answer_that_makes_no_sense_is_refused(
    rig: Any,
    announce: Any,
    manifest: Manifest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    case: str,
) -> None:
    monkeypatch.setattr(client, "PAUSE_S", 0.001)
    answer, reason = HEADS[case]
    receiver = rig.receiver()
    with (
        peer(lambda _: answer) as url,
        pytest.raises(WeightsError, match=f"version 1 of policy 'solver'.*{reason}"),
    ):
        receiver.fetch(announce(manifest, url), 20)
    assert not list(tmp_path.rglob("*.part"))


LIES: dict[str, tuple[dict[str, Any], str]] = {
    "size": ({"size": 1 << 50}, "as announced"),
    "no block size": ({"block_size": 0}, "as announced"),
    "block of a terabyte": ({"block_size": 1 << 40}, "as announced"),
    "fewer blocks": ({"blocks": ()}, "has digest"),
    "other policy": ({"policy": "../../etc"}, "is of policy"),
    "other version": ({"version": 2}, "is of policy"),
    "other digest": ({"digest": "0" * 32}, "has digest"),
    "negative": ({"size": -1}, "as announced"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_wrong_manifest_is_refused(rig: Any, announce: Any, manifest: Manifest, lie: str) -> None:
    changes, reason = LIES[lie]
    with (
        peer(only_manifest(encoded(manifest, **changes))) as url,
        pytest.raises(WeightsError, match=reason),
    ):
        rig.receiver().fetch(announce(manifest, url), 20)


DATA = {
    "the whole to a range": (ok(b"x" * 100), "answered 200 with 100 bytes to a range of"),
    "less than asked for": (ok(b"x" * 9, status="206 P"), "answered 206 with 9 bytes to a range"),
    "more than asked for": (ok(b"", 1 << 40, status="206 P"), "to a range of"),
    "a truncated block": (ok(b"x" * 99, 2097152, status="206 P"), "ended early|to a range of"),
}


@pytest.mark.parametrize("case", DATA)
def test_data_that_does_not_fit_is_refused(
    rig: Any,
    announce: Any,
    manifest: Manifest,
    monkeypatch: pytest.MonkeyPatch,
    case: str,
) -> None:
    monkeypatch.setattr(client, "PAUSE_S", 0.001)
    data, reason = DATA[case]
    with (
        peer(only_manifest(encoded(manifest), data)) as url,
        pytest.raises(WeightsError, match=reason),
    ):
        rig.receiver(streams=1).fetch(announce(manifest, url), 20)


def test_a_reply_to_the_last_delete_is_ignored(
    rig: Any, announce: Any, read: Any, raw: Any, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply to DELETE is skipped when the connection is used again."""
    monkeypatch.setattr(client, "MOST_FACTOR", 1)  # on a busy machine the path looks long
    publisher = rig.publisher()
    receiver = rig.receiver(streams=1)
    for version in (1, 2, 3):
        tensors = model(version)
        source = receiver.fetch(
            announce(publisher.publish(version, tensors), *publisher.endpoints), 20
        )
        assert read(source.path) == raw(tensors)
    idle = [c for kept in receiver._pool._idle.values() for c, _ in kept]
    assert len(idle) == 1, "one connection served all three versions"


def test_names_in_an_announcement_cannot_leave_the_folder(
    rig: Any, announce: Any, manifest: Manifest, tmp_path: Path
) -> None:
    receiver = rig.receiver()
    for policy in ("../up", "a/b", "", "a\r\nHost: x"):
        with pytest.raises(WeightsError, match="malformed announcement"):
            receiver.fetch(replace(announce(manifest, "http://127.0.0.1:1"), policy=policy), 5)
    for address in (
        "file:///etc/passwd",
        "http://",
        "gopher://x",
        "http://x:99999",
        "http://[::1",
        "http://x:0",
    ):
        with pytest.raises(WeightsError, match="expected an address such as"):
            receiver.fetch(announce(manifest, address), 5)
    assert [p for p in tmp_path.rglob("*") if p.is_file() and p.name != "lock"] == []
