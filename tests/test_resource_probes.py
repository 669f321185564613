"""Who reaches a port without the token costs little memory, few descriptors and threads, and keeps nobody out."""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from astraflow_wire.http.connection_limits import RESERVED_DESCRIPTORS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

TOKEN = "of-this-run"
ROUTES = {
    "service": "/v1/nothing",
    "weights": "/v1/weights/solver/1/manifest",
    "desk": "/v1/nothing",
}
"""What each answers with 404 to who has the token, or 501."""
DESCRIPTORS = 256
MANY = 400
"""Connections, more than the process has descriptors."""
MOST_MEMORY = 24 << 20
"""Bytes by which the resident memory may grow at most."""
FLOOD = 48 << 20
"""Bytes that an attack sends, if it is let."""
WAIT_S = 20.0


class Probed:
    """A listener of one kind in a process of its own."""

    def __init__(self, kind: str, process: subprocess.Popen[str]) -> None:
        self.kind, self.process = kind, process
        assert process.stdout is not None
        self.port = int(process.stdout.readline())
        self.before = self.memory()

    def memory(self) -> int:
        """The most resident memory that it has had, in bytes."""
        return 1024 * int(self._status("VmHWM").split()[0])

    def threads(self) -> int:
        return int(self._status("Threads"))

    def _status(self, key: str) -> str:
        text = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return next(line.split(":")[1] for line in text.splitlines() if line.startswith(key))

    def could_open(self, count: int) -> int:
        """How many of ``count`` files it could open now."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), WAIT_S)

    def check(self) -> None:
        """A new client with the token is answered; files can be opened; memory and threads are bounded."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        connection.request("GET", ROUTES[self.kind], headers={"Authorization": f"Bearer {TOKEN}"})
        assert connection.getresponse().status == (501 if self.kind == "desk" else 404)
        connection.close()
        assert self.could_open(RESERVED_DESCRIPTORS - 8) == RESERVED_DESCRIPTORS - 8
        assert self.memory() - self.before < MOST_MEMORY
        assert self.threads() < DESCRIPTORS // 2


@contextmanager
def probed(kind: str) -> Iterator[Probed]:
    command = [sys.executable, str(Path(__file__).with_name("probed_listener.py"))]
    with subprocess.Popen(
        [*command, kind, TOKEN, str(DESCRIPTORS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Probed(kind, process)
        finally:
            process.kill()


@pytest.mark.parametrize("kind", ROUTES)
@pytest.mark.parametrize("first", [b"", b"GET /v1/nothing HTTP/1.1\r\nHost: x\r\nA: "])
def test_many_silent_or_dripping_connections_keep_no_one_out(kind: str, first: bytes) -> None:
    with probed(kind) as listener, ExitStack() as stack:
        for _ in range(MANY):
            connection = stack.enter_context(listener.connect())
            with suppress(ConnectionError):
                connection.sendall(first)
        listener.check()


@pytest.mark.parametrize("kind", ROUTES)
def test_those_with_the_token_stay(kind: str) -> None:
    with probed(kind) as listener, ExitStack() as stack:
        known = http.client.HTTPConnection("127.0.0.1", listener.port, timeout=WAIT_S)
        stack.callback(known.close)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        for _ in range(2):
            known.request("GET", ROUTES["weights"], headers=headers)
            answer = known.getresponse()
            answer.read()
            if kind == "desk" or answer.will_close:
                return  # one request per connection
            own = known.sock
            for _ in range(MANY):
                stack.enter_context(listener.connect())
            assert known.sock is own


def one_header(flood: int) -> Iterator[bytes]:
    yield b"GET /v1/nothing HTTP/1.1\r\nA: "
    for _ in range(flood >> 16):
        yield b"x" * (1 << 16)


def many_headers(flood: int) -> Iterator[bytes]:
    yield b"GET /v1/nothing HTTP/1.1\r\n"
    for _ in range(flood >> 16):
        yield b"a:\r\n" * (1 << 14)


def a_path(flood: int) -> Iterator[bytes]:
    yield b"GET /"
    for _ in range(flood >> 16):
        yield b"x" * (1 << 16)


def trailers(flood: int) -> Iterator[bytes]:
    yield b"POST /v1/nothing HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"
    for _ in range(flood >> 16):
        yield b"a: b\r\n" * (1 << 13)


def one_trailer(flood: int) -> Iterator[bytes]:
    yield b"POST /v1/nothing HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\na: "
    for _ in range(flood >> 16):
        yield b"x" * (1 << 16)


def requests_at_once(flood: int) -> Iterator[bytes]:
    for _ in range(flood >> 16):
        yield b"GET / HTTP/1.1\r\n\r\n" * (1 << 12)


def a_body(flood: int) -> Iterator[bytes]:
    yield b"POST /v1/nothing HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % flood
    for _ in range(flood >> 16):
        yield b"x" * (1 << 16)


FLOODS = (one_header, many_headers, a_path, trailers, one_trailer, requests_at_once, a_body)


@pytest.mark.parametrize("kind", ROUTES)
def test_no_flood_costs_much_memory(kind: str) -> None:
    with probed(kind) as listener:
        for flood in FLOODS:
            with listener.connect() as connection:
                with suppress(ConnectionError, TimeoutError):
                    # The flood stops if replies are not read, which is acceptable.
                    connection.settimeout(0.5)
                    for piece in flood(FLOOD):
                        connection.sendall(piece)
                listener.check()


@pytest.mark.parametrize("kind", ROUTES)
def test_many_floods_together_cost_little_memory(kind: str) -> None:
    with probed(kind) as listener, ExitStack() as stack:
        for _ in range(64):
            connection = stack.enter_context(listener.connect())
            with suppress(ConnectionError):
                connection.sendall(b"GET /v1/nothing HTTP/1.1\r\nA: " + b"x" * 60_000)
        listener.check()
