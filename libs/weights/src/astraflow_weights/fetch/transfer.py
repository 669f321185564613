"""Brings ranges of one resource over several connections, each asked for the next before the last is read."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from astraflow_weights.connection import Connection
from astraflow_weights.failures import Failures, PublisherFailed

if TYPE_CHECKING:
    from astraflow_weights.fetch.client import VersionClient

Piece = tuple[int, int]
"""First byte and the one after the last."""

ASKED_AHEAD = 2
"""Pieces asked for and not yet received, per connection."""
SMALLEST_PIECE = 64 << 10
LARGEST_PIECE = 32 << 20


class Sink(Protocol):
    """Receives pieces. Calls come from several threads, never two for overlapping pieces."""

    def receive(self, connection: Connection, piece: Piece) -> None:
        """Read all of ``piece`` from ``connection``; raises :class:`OSError` if it ends early."""

    def missing(self, piece: Piece) -> Iterable[Piece]:
        """What is still to be fetched of ``piece``, after it has been received or has failed."""


class BlockTransfer:
    """Fetches pieces of ``what`` into ``sink``, which must not be used before :meth:`run` has ended."""

    def __init__(self, client: VersionClient, what: str, sink: Sink) -> None:
        self._client, self._what, self._sink = client, what, sink
        self._pending: deque[Piece] = deque()
        self._lock = threading.Lock()
        self._helpers: list[threading.Thread] = []
        self._connections: set[Connection] = set()
        self._error: BaseException | None = None

    def run(self, pieces: Iterable[Piece]) -> None:
        """Fetch ``pieces``; returns when the sink misses nothing of them."""
        self._pending.extend(pieces)
        try:
            self._widen()
            self._work(leading=True)
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            for helper in self._helpers:  # none may write after this call
                helper.join()
        self._client.raise_if_stopped()
        if self._error is not None:
            raise self._error

    def _ended(self) -> bool:
        return self._client.stopped or self._error is not None

    def _fail(self, error: BaseException) -> None:
        """Wake every stream, to end: the client may continue with other things."""
        with self._lock:
            self._error = self._error or error
            for connection in self._connections:
                connection.interrupt()

    def _widen(self) -> None:
        """Start as many streams as the path takes and the work is worth."""
        with self._lock:
            wanted = min(self._client.width(), len(self._pending))
            while len(self._helpers) < wanted - 1:
                self._helpers.append(threading.Thread(target=self._help, daemon=True))
                self._helpers[-1].start()

    def _help(self) -> None:
        try:
            self._work(leading=False)
        except Exception as error:  # noqa: BLE001 (raised again by run, in the caller's thread)
            self._fail(error)

    def _work(self, leading: bool) -> None:
        client = self._client
        connection: Connection | None = None
        asked: deque[Piece] = deque()
        reused = False
        failures = Failures()
        try:
            while not self._ended():
                try:
                    if connection is None:
                        if not self._pending:
                            break
                        connection = client.connect()
                        reused = connection.used
                        with self._lock:
                            self._connections.add(connection)
                    self._request_ahead(connection, asked)
                    if not asked:
                        break
                    self._receive(connection, asked[0])
                    self._put_back(asked.popleft())
                    reused = False
                    if leading:
                        self._widen()
                except OSError as error:
                    if connection is not None:
                        self._release(connection, client.drop)
                    connection = None
                    while asked:
                        self._put_back(asked.pop())
                    if (
                        self._error is None and not reused
                    ):  # one that the publisher has closed meanwhile is not a failure
                        failures = client.pause_after(error, failures)
                    reused = False
        finally:
            if connection is not None:
                self._release(connection, client.drop if asked else client.keep)

    def _release(self, connection: Connection, how: Callable[[Connection], None]) -> None:
        with self._lock:
            self._connections.discard(connection)
        how(connection)

    def _request_ahead(self, connection: Connection, asked: deque[Piece]) -> None:
        while len(asked) < ASKED_AHEAD:
            with self._lock:
                # The last pieces go to whoever is idle, not into a queue behind another piece.
                if not self._pending or (asked and len(self._pending) <= len(self._helpers)):
                    return
                asked.append(self._pending.popleft())
            start, stop = asked[-1]
            self._client.ask(connection, self._what, {"Range": f"bytes={start}-{stop - 1}"})

    def _receive(self, connection: Connection, piece: Piece) -> None:
        answer = self._client.answer(connection)
        size = piece[1] - piece[0]
        if answer.status != 206 or answer.length != size:
            raise PublisherFailed(
                f"answered {answer.status} with {answer.length} bytes to a range of {size}"
            )
        self._sink.receive(connection, piece)

    def _put_back(self, piece: Piece) -> None:
        missing = list(self._sink.missing(piece))
        if missing:
            with self._lock:
                self._pending.extend(missing)


class BufferSink:
    """Fills ``into`` with the bytes from ``offset`` on; a broken piece continues at the byte where it broke."""

    def __init__(self, client: VersionClient, into: memoryview, offset: int) -> None:
        self._client, self._into, self._offset = client, into, offset
        self._position: dict[int, int] = {}

    def pieces(self, streams: int) -> list[Piece]:
        """The whole buffer, cut so that every stream has work."""
        size = len(self._into)
        length = min(max(-(-size // (streams * ASKED_AHEAD)), SMALLEST_PIECE), LARGEST_PIECE)
        end = self._offset + size
        return [(at, min(at + length, end)) for at in range(self._offset, end, length)]

    def receive(self, connection: Connection, piece: Piece) -> None:
        """See :class:`Sink`."""
        start, stop = piece
        position = start
        try:
            while position < stop:
                with self._into[position - self._offset : stop - self._offset] as rest:
                    position += connection.read_some(rest)
        finally:
            self._position[start] = position
            self._client.count(position - start)
        self._client.succeeded()

    def missing(self, piece: Piece) -> list[Piece]:
        """See :class:`Sink`."""
        start, stop = piece
        position = self._position.pop(start, start)
        return [(position, stop)] if position < stop else []
