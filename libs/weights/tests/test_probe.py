"""Measuring the link to a publisher: bounded in time and bytes, whatever the other end does."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest

from astraflow_core.errors import WeightsError
from astraflow_core.types import Announcement
from astraflow_weights.fetch import probe as probing
from astraflow_weights.fetch.probe import LEAST_BYTES, probe
from astraflow_weights.fetch.transfer import BlockTransfer

TOKEN = "a-token-of-the-run"
PUBLISHER = """
import json, sys
import numpy as np
from astraflow_core.types import ExportedTensor
from astraflow_weights.publish.publisher import HttpPublisher
publisher = HttpPublisher("solver", sys.argv[1], host="127.0.0.1", port=0, advertise=None)
data = np.zeros(12 << 20, np.uint8)
manifest = publisher.publish(3, [ExportedTensor("a", "U8", data.shape, data)])
print(json.dumps([publisher.endpoints, manifest.digest, manifest.size]), flush=True)
sys.stdin.read()
publisher.close()
"""
pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def publisher() -> Iterator[tuple[Announcement, int]]:
    """A version of 12 MiB that another process publishes, and the id of that process."""
    with subprocess.Popen(
        [sys.executable, "-c", PUBLISHER, TOKEN],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            endpoints, digest, size = json.loads(process.stdout.readline())
            yield Announcement("solver", 3, "http", tuple(endpoints), digest, size), process.pid
        finally:
            process.kill()


@contextmanager
def peer(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Listens on loopback; ``answer`` gets each connection once a request's head has come."""
    listener = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.recv(65536)
            answer(connection)
            ended.wait(30)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        ended.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def test_a_publisher_is_measured_and_no_more_is_asked_for_than_allowed(
    publisher: tuple[Announcement, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    run = BlockTransfer.run

    def recorded(self: Any, pieces: list[tuple[int, int]]) -> None:
        asked.extend(pieces)
        run(self, pieces)

    monkeypatch.setattr(BlockTransfer, "run", recorded)
    link = probe(publisher[0], TOKEN, longest_s=20, most_bytes=6 << 20)
    assert link.mb_s > 0 and 0 < link.round_trip_s < 20
    assert asked[0][0] == 0 and asked[-1][1] == 6 << 20
    assert sum(stop - start for start, stop in asked) == 6 << 20


def test_the_next_address_is_measured_if_the_first_is_dead(
    publisher: tuple[Announcement, int],
) -> None:
    told = publisher[0]
    with socket.create_server(("127.0.0.1", 0)) as free:
        dead = f"http://127.0.0.1:{free.getsockname()[1]}"
    both = replace(told, endpoints=("tcp://127.0.0.1:1", dead, *told.endpoints))
    assert probe(both, TOKEN, longest_s=20).mb_s > 0
    with pytest.raises(WeightsError, match=r"expected an address.*refused"):
        probe(replace(told, endpoints=both.endpoints[:2]), TOKEN, longest_s=20)
    with pytest.raises(WeightsError, match="announced without an address"):
        probe(replace(told, endpoints=()), TOKEN)


def test_who_is_not_of_the_run_measures_nothing(publisher: tuple[Announcement, int]) -> None:
    with pytest.raises(WeightsError, match="401: missing or wrong bearer token"):
        probe(publisher[0], "another", longest_s=20)
    with pytest.raises(WeightsError, match="404"):
        probe(replace(publisher[0], version=4), TOKEN, longest_s=20)


def test_a_small_version_is_not_measured() -> None:
    told = Announcement("solver", 0, "http", ("http://127.0.0.1:1",), "", LEAST_BYTES - 1)
    with pytest.raises(WeightsError, match=r"4\.2 MB is too small"):
        probe(told, TOKEN)


def test_a_publisher_that_hangs_holds_no_one_up(publisher: tuple[Announcement, int]) -> None:
    told, pid = publisher
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(WeightsError, match="deadline passed"):
            probe(told, TOKEN, longest_s=0.2)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert probe(told, TOKEN, longest_s=20).mb_s > 0


def endless(first: bytes, piece: bytes) -> Callable[[socket.socket], None]:
    def answer(connection: socket.socket) -> None:
        connection.sendall(first)
        while True:
            connection.sendall(piece)

    return answer


def once(answer: bytes) -> Callable[[socket.socket], None]:
    return lambda connection: connection.sendall(answer)


HEAD = b"HTTP/1.1 206 Partial Content\r\nContent-Length: 262144\r\n\r\n"
DEEP = b"[" * 4000
HOSTILE = {
    "an endless head": endless(b"HTTP/1.1 206 OK\r\n", b"x: y\r\n" * 1000),
    "a body longer than asked for": endless(HEAD, b"x" * 65536),
    "a size that lies": once(b"HTTP/1.1 206 OK\r\nContent-Length: 1099511627776\r\n\r\n"),
    "a body without a length": endless(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 65536),
    "the whole file": endless(b"HTTP/1.1 200 OK\r\nContent-Length: 12582912\r\n\r\n", b"x" * 65536),
    "a reason without end": once(
        b"HTTP/1.1 404 No\r\nContent-Length: %d\r\n\r\n" % len(DEEP) + DEEP
    ),
    "silence": once(b""),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_publisher_is_given_up(case: str) -> None:
    with peer(HOSTILE[case]) as url:
        told = Announcement("solver", 3, "http", (url,), "", 12 << 20)
        with pytest.raises(WeightsError, match=r"127\.0\.0\.1"):
            probe(told, TOKEN, longest_s=0.3)


def test_a_publisher_that_falls_silent_is_measured_by_what_came() -> None:
    with peer(once(HEAD + b"x")) as url:
        told = Announcement("solver", 3, "http", (url,), "", 12 << 20)
        assert 0 < probe(told, TOKEN, longest_s=1.0).mb_s < 0.1


class Clock:
    """A time that passes as bytes are read: ``rates`` in bytes a second, one for each second."""

    def __init__(self, *rates: int) -> None:
        self.now, self._rates = 100.0, rates

    def monotonic(self) -> float:
        return self.now

    def read_some(self, view: memoryview) -> int:
        self.now += len(view) / self._rates[min(int(self.now - 100.0), len(self._rates) - 1)]
        return len(view)


@pytest.mark.parametrize(
    ("rates", "expected"),
    [((10 << 20, 10 << 20), 10), ((1 << 20, 20 << 20), 20), ((20 << 20, 1 << 20), 10.5)],
)
def test_the_rate_is_that_of_the_second_half_if_it_is_higher(
    rates: tuple[int, ...], expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(*rates)
    monkeypatch.setattr(probing, "time", clock)
    meter = probing._Meter(102.0)
    with meter.running(), pytest.raises(probing._Enough):
        meter.receive(clock, (0, 64 << 20))  # type: ignore[arg-type]
    assert meter.conclusive
    assert meter.mb_s() == pytest.approx(expected * 1.048576, rel=0.01)
