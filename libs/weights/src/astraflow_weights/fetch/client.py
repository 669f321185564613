"""One version at one publisher: its manifest, its side objects, and connections to fetch it by."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from types import TracebackType
from uuid import uuid4

import msgspec

from astraflow_core.errors import WeightsError, WireError
from astraflow_core.types import Announcement, Manifest, Source
from astraflow_weights import sources
from astraflow_weights.addresses import address_of
from astraflow_weights.announced import MAX_MANIFEST, decode_manifest
from astraflow_weights.connection import Answer, Connection
from astraflow_weights.failures import (
    BAD_ATTEMPTS,
    BadAnswer,
    Failures,
    MissingObject,
    PublisherFailed,
)
from astraflow_weights.fetch.pool import ConnectionPool
from astraflow_weights.fetch.relay import Relay
from astraflow_weights.fetch.transfer import BlockTransfer, BufferSink
from astraflow_weights.publish.server import FROM_HEADER, READER_HEADER, RELAY_HEADER
from astraflow_weights.publish.store import OBJECT_NAME
from astraflow_wire.decoding import from_json

log = logging.getLogger(__name__)

PAUSE_S = 0.05
"""The wait before a request is made again, doubled after each failure in a row."""
FAILURES = 5
"""Failed requests in a row, with nothing good between, after which a publisher is given up."""
STALL_S = 20.0
"""A publisher that sends nothing for so long counts as failed."""
PER_STREAM = 1 << 20
FAR_S = 0.02
FAR_FACTOR = 4
"""Factor by which the initial number of streams grows on a round trip above ``FAR_S``, since each starts slowly."""
MOST_FACTOR = 8


class _Refusal(msgspec.Struct):
    error: str


class VersionClient:
    """Fetches from ``endpoint`` what ``announcement`` announces, until ``deadline`` (of
    :func:`time.monotonic`). A context manager: leaving it ends the lease and frees the connections.

    Its methods raise :class:`PublisherFailed` when another publisher should be tried, and
    :class:`WeightsError` when there is no use in continuing: the deadline passed, or it was cancelled. They
    belong to one thread; :meth:`cancel` may be called from any.
    """

    def __init__(
        self,
        announcement: Announcement,
        endpoint: str,
        token: str,
        deadline: float,
        streams: int = 4,
        *,
        failures: int = FAILURES,
        stall_s: float = STALL_S,
        pool: ConnectionPool | None = None,
        relay: Relay | None = None,
    ) -> None:
        address = address_of(endpoint, "http", "https")
        self.announcement = announcement
        self._streams = streams
        self._address, self._deadline = address, deadline
        self._path = (
            f"{address.path.rstrip('/')}/v1/weights/{announcement.policy}/{announcement.version}"
        )
        self._headers = {READER_HEADER: uuid4().hex}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._pool = pool or ConnectionPool(0)
        self._relay = relay
        self.nearer = ""
        """Address of a relay that the publisher wants this reader to fetch from, with the manifest."""
        self.named: tuple[Source, ...] = ()
        """Who serves which blocks, with the manifest, if not this publisher."""
        self.sources: tuple[VersionClient, ...] = ()
        """Clients of those, while their blocks are fetched."""
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._error: BaseException | None = None
        self._open: set[Connection] = set()
        self._progress, self._most_failures = 0, failures
        self._stall_s = stall_s
        self._seen = False
        self._round_trip_s = float("inf")
        self._began = time.monotonic()
        self.received = 0
        """Bytes of blocks and objects that have arrived, wrong and repeated ones included."""
        given_s = self._left()
        late = WeightsError(
            f"the deadline passed: {endpoint} did not deliver version {announcement.version} of policy "
            f"{announcement.policy!r} within {given_s:.3g} s"
        )
        self._watchdog = threading.Timer(given_s, self.cancel, [late])
        self._watchdog.daemon = True

    def __enter__(self) -> VersionClient:
        self._watchdog.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._watchdog.cancel()
        if self._seen and self._error is None:
            self._release()

    def manifest(self) -> Manifest:
        """The manifest, which is what the announced digest stands for; fetched again, as blocks are, if it arrives
        damaged."""
        attempt = 1
        while True:
            body = self._read_all("manifest", MAX_MANIFEST)
            try:
                manifest = decode_manifest(body, self.announcement)
                self.named = sources.decode(body, manifest)
                return manifest
            except WireError as error:
                if attempt == BAD_ATTEMPTS:
                    raise PublisherFailed(str(error)) from error
                log.info("a manifest arrived damaged, attempt %d: %s", attempt, error)
                attempt += 1

    def read(self, name: str, limit: int) -> bytes:
        """The side object ``name``, whole, if it has at most ``limit`` bytes. Not verified."""
        body = self._read_all(f"objects/{_checked(name)}", limit)
        self.count(len(body))
        return body

    def read_into(self, name: str, into: memoryview, offset: int = 0) -> None:
        """Fill ``into`` with the bytes of the side object ``name`` from ``offset`` on, in parallel ranges
        that continue where a connection broke. Not verified."""
        sink = BufferSink(self, into, offset)
        BlockTransfer(self, f"objects/{_checked(name)}", sink).run(sink.pieces(self.width()))

    def cancel(self, error: BaseException) -> None:
        """Let every call end with ``error``, from any thread."""
        with self._lock:
            self._error = self._error or error
            self._stopped.set()
            for connection in self._open:
                connection.interrupt()

    @property
    def stopped(self) -> bool:
        """Whether it was cancelled."""
        return self._stopped.is_set()

    def raise_if_stopped(self) -> None:
        """Raise the error that it was cancelled with, if it was."""
        if self._error is not None:
            raise self._error

    @property
    def encrypted(self) -> bool:
        """Whether what arrives is decrypted in this process."""
        return self._address.scheme == "https"

    @property
    def round_trip_s(self) -> float:
        """The shortest that a connection took, in seconds; infinite before the first."""
        return self._round_trip_s

    def width(self) -> int:
        """Streams that the path takes: one per :data:`PER_STREAM` bytes in flight, from measured rate and
        round trip, since the kernel bounds what one connection has in flight."""
        with self._lock:
            round_trip, received = self._round_trip_s, self.received
        if round_trip == float("inf"):
            return self._streams
        rate = received / max(time.monotonic() - self._began, 1e-3)
        least = self._streams * (FAR_FACTOR if round_trip > FAR_S else 1)
        most = self._streams * MOST_FACTOR
        return min(max(int(rate * round_trip / PER_STREAM), least), most)

    def connect(self) -> Connection:
        """A connection of this version, a new one or one that an earlier version has left."""
        patience = min(self._stall_s, max(self._left(), 0.001))
        connection = self._pool.take(self._address) or Connection(self._address, patience)
        connection.set_stall_timeout(self._stall_s)
        with self._lock:
            self._open.add(connection)
            self._round_trip_s = min(self._round_trip_s, connection.round_trip_s)
        if self.stopped:
            self.drop(connection)
            raise BadAnswer("cancelled")
        return connection

    def ask(self, connection: Connection, what: str, headers: dict[str, str]) -> None:
        """Send a request; :meth:`answer` reads the response."""
        connection.send("GET", f"{self._path}/{what}", self._headers | headers)

    def answer(self, connection: Connection) -> Answer:
        """The next response, if it is valid. Raises :class:`OSError` for temporary failures."""
        answer = connection.answer()
        if answer.status in (200, 206):
            self._seen = True
            return answer
        reason = f"{answer.status}: {_reason(connection, answer)}"
        if answer.status >= 500 or answer.status == 429:
            raise BadAnswer(reason)
        raise (MissingObject if answer.status == 404 else PublisherFailed)(reason)

    def keep(self, connection: Connection) -> None:
        """Return an idle connection to the pool, for the next call or version."""
        with self._lock:
            self._open.discard(connection)
        if self.stopped or connection.closing:
            connection.close()
        else:
            self._pool.give(self._address, connection)

    def drop(self, connection: Connection) -> None:
        """Close a connection."""
        with self._lock:
            self._open.discard(connection)
        connection.close()

    def count(self, received: int) -> None:
        """Count received bytes."""
        with self._lock:
            self.received += received

    def succeeded(self) -> None:
        """Valid data has arrived: reset the count of failures."""
        with self._lock:
            self._progress += 1

    def pause_after(self, error: Exception, before: Failures) -> Failures:
        """Wait a little longer after each failure in a row of one stream, and give up the publisher
        after several; ``before`` is the result of the call after the previous failure. Streams
        count separately, since one break of a link fails them all."""
        self.raise_if_stopped()
        with self._lock:
            progress = self._progress
        count = before.count + 1 if before.progress == progress else 1
        if count > self._most_failures:
            reason = str(error) or type(error).__name__
            if isinstance(error, ConnectionRefusedError):
                reason = "nothing listens there: its publisher has exited"
            if count > 1:
                reason = f"{count} requests failed in a row, the last: {reason}"
            raise PublisherFailed(reason)
        self._stopped.wait(PAUSE_S * 2**count)
        return Failures(count, progress)

    def _read_all(self, what: str, limit: int) -> bytes:
        failures = Failures()
        while True:
            self.raise_if_stopped()
            connection, reused = None, False
            try:
                connection = self.connect()
                reused = connection.used
                headers = {}
                if what == "manifest" and self._relay is not None:
                    host = connection.socket.getsockname()[0]
                    headers[RELAY_HEADER] = str(self._relay.port(host))
                self.ask(connection, what, headers)
                answer = self.answer(connection)
                if answer.length is None or answer.length > limit:
                    raise PublisherFailed(
                        f"its {what} has {answer.length} bytes, at most {limit} are read"
                    )
                body = connection.read(answer.length)
            except PublisherFailed:
                if connection is not None:
                    self.drop(connection)
                raise
            except OSError as error:
                if connection is not None:
                    self.drop(connection)
                if not reused:  # one that the publisher has closed meanwhile is not a failure
                    failures = self.pause_after(error, failures)
                continue
            self.keep(connection)
            self.succeeded()
            self.nearer = answer.headers.get(FROM_HEADER.lower(), self.nearer)
            return body

    def _release(self) -> None:
        """Notify the publisher that this reader is done; otherwise its lease would expire."""
        path = f"{self._path}/readers/{self._headers[READER_HEADER]}"
        with contextlib.suppress(OSError):
            connection = self.connect()
            try:
                connection.send_and_forget("DELETE", path, self._headers)
            except OSError:
                self.drop(connection)
                raise
            self.keep(connection)

    def _left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())


def _checked(name: str) -> str:
    if not OBJECT_NAME.fullmatch(name):
        raise ValueError(f"object name {name!r}, expected {OBJECT_NAME.pattern}")
    return name


def _reason(connection: Connection, answer: Answer) -> str:
    """The reason in an error's body, if it is short and ours."""
    if answer.length is None or answer.length > 4096:
        connection.closing = True
        return answer.reason
    try:
        return from_json(connection.read(answer.length), _Refusal, "no reason").error
    except WireError:
        return answer.reason
