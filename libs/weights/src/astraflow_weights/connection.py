"""One keep-alive HTTP/1.1 connection that may ask for the next range before it has read the last.

``http.client`` waits for each answer before the next request, which costs a round trip per range on a long
link, and copies bodies through a buffer; here they are received where they belong.
"""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import struct
import time
from dataclasses import dataclass
from urllib.parse import SplitResult

from astraflow_weights.failures import BadAnswer, PublisherFailed
from astraflow_wire.http.tls import UntrustedPeer, client_tls, explained, looked_at

MAX_HEAD = 64 << 10
"""Longest head of an answer, in bytes."""
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})(?: ([^\r\n]*))?\r\n")
_LENGTH = re.compile(r"\d{1,18}")


def set_stall_timeout(connected: socket.socket, seconds: float) -> None:
    """Make a socket blocking, its calls failing with :class:`BlockingIOError` after ``seconds`` in which
    nothing moved. Unlike Python's own timeouts this needs one system call, not two, to move a block. One with TLS has
    those: it raises :class:`TimeoutError`, since ssl would wait on after a blocking call that failed."""
    if isinstance(connected, ssl.SSLSocket):
        connected.settimeout(seconds)
        return
    connected.settimeout(None)
    wait = struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6) or 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, wait)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, wait)


@dataclass(frozen=True, slots=True)
class Answer:
    """Head of an answer: ``length`` bytes of body follow; None if the sender does not say how many.
    ``headers`` have lower-case names."""

    status: int
    reason: str
    length: int | None
    headers: dict[str, str]


class Connection:
    """Connected from construction on, with the TLS of this process. ``round_trip_s`` is how long that took; ``used``:
    whether it has carried a response. Any method may raise :class:`OSError`; the connection is unusable then. An invalid
    response of the publisher raises :class:`PublisherFailed`."""

    def __init__(self, address: SplitResult, timeout: float) -> None:
        secure = address.scheme == "https"
        host, port = address.hostname or "", address.port or (443 if secure else 80)
        url = f"{address.scheme}://{address.netloc.rpartition('@')[2]}"
        try:
            context = client_tls(url)
        except UntrustedPeer as error:
            raise PublisherFailed(str(error)) from error
        began = time.monotonic()
        self.socket: socket.socket = socket.create_connection((host, port), timeout)
        self.round_trip_s = time.monotonic() - began
        try:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context is not None:
                self.socket = context.wrap_socket(self.socket, server_hostname=host)
        except BaseException as error:
            self.socket.close()
            if problem := explained(error, url):
                raise PublisherFailed(problem) from error
            raise
        self._whole = 0 if secure else socket.MSG_WAITALL
        self.set_stall_timeout(timeout)
        self._url, self._host = url, address.netloc.rpartition("@")[2]
        self._ahead = bytearray()
        self.used = False
        self.closing = False
        self._owed = 0

    def set_stall_timeout(self, seconds: float) -> None:
        """Let every call fail that gets nothing through for so long."""
        set_stall_timeout(self.socket, seconds)

    def send(self, method: str, path: str, headers: dict[str, str]) -> None:
        """Send a request without a body."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self._host}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))

    def send_and_forget(self, method: str, path: str, headers: dict[str, str]) -> None:
        """Send a request whose response does not matter: it is skipped when it arrives."""
        self.send(method, path, headers)
        self._owed += 1

    def answer(self) -> Answer:
        """The head of the next answer; its body must be read before the next call."""
        while self._owed:
            self._owed -= 1
            passed = self._next()
            if passed.length is None or passed.length > MAX_HEAD:
                raise BadAnswer(f"an unexpected body of {passed.length} bytes")
            self.read(passed.length)
        return self._next()

    def _next(self) -> Answer:
        if self.closing:
            raise BadAnswer("the connection ended after an answer")
        while True:
            head = self._head()
            status = _STATUS.match(head)
            if status is None:
                raise BadAnswer(f"no HTTP answer: {bytes(head[:40])!r}")
            if status[1] != b"100":
                break
        headers: dict[str, str] = {}
        for line in head[status.end() :].split(b"\r\n"):
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
        length: int | None = 0 if status[1] in (b"204", b"304") else None
        if _LENGTH.fullmatch(headers.get("content-length", "")):
            length = int(headers["content-length"])
        self.closing = "close" in headers.get("connection", "").lower() or length is None
        self.used = True
        return Answer(int(status[1]), (status[2] or b"").decode("latin-1"), length, headers)

    def read_ahead(self, most: int) -> bytes:
        """The part of a body that arrived with its head, at most that many bytes."""
        early = bytes(self._ahead[:most])
        del self._ahead[: len(early)]
        return early

    def read_some(self, view: memoryview) -> int:
        """Receive at least one byte of a body into ``view``, at most its length; how many."""
        if self._ahead:
            early = self.read_ahead(len(view))
            view[: len(early)] = early
            return len(early)
        try:
            count = self.socket.recv_into(view, 0, self._whole)
        except BlockingIOError as error:
            raise TimeoutError("no data arrived in time") from error
        if not count:
            raise BadAnswer("the connection ended early")
        return count

    def read(self, length: int) -> bytes:
        """A body, or the rest of one, of ``length`` bytes."""
        body = bytearray(length)
        with memoryview(body) as view:
            position = 0
            while position < length:
                with view[position:] as rest:
                    position += self.read_some(rest)
        return bytes(body)

    def _raise_if_refused(self, error: OSError | None) -> None:
        """Raise :class:`PublisherFailed` if a new connection ends since the publisher does not accept our certificate."""
        if isinstance(self.socket, ssl.SSLSocket) and not self.used:
            problem = explained(error, self._url) or looked_at(self._url)
            if problem is not None:
                raise PublisherFailed(problem) from error

    def interrupt(self) -> None:
        """Make pending reads and writes fail at once, from any thread."""
        with contextlib.suppress(OSError):
            # That of ssl discards its keys first: another thread would continue in clear text.
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it; closing twice is allowed."""
        self.socket.close()

    def _head(self) -> bytearray:
        while (end := self._ahead.find(b"\r\n\r\n")) < 0:
            if len(self._ahead) > MAX_HEAD:
                raise BadAnswer(f"an answer with a head of more than {MAX_HEAD} bytes")
            try:
                piece = self.socket.recv(MAX_HEAD)
            except BlockingIOError as error:
                raise TimeoutError("no data arrived in time") from error
            except (ssl.SSLError, ConnectionError) as error:
                self._raise_if_refused(error)
                raise
            if not piece:
                self._raise_if_refused(None)
                raise BadAnswer("the connection ended early")
            self._ahead += piece
        head = self._ahead[: end + 2]
        del self._ahead[: end + 4]
        return head
