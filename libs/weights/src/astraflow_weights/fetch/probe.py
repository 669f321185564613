"""Measures the connection from a publisher to this host before anything is fetched: briefly, with a bounded number of bytes."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing

from astraflow_core.errors import WeightsError
from astraflow_core.types import Announcement, Link
from astraflow_weights.connection import Connection
from astraflow_weights.failures import PublisherFailed
from astraflow_weights.fetch.client import MOST_FACTOR, VersionClient
from astraflow_weights.fetch.pool import ConnectionPool
from astraflow_weights.fetch.transfer import BlockTransfer, Piece

LONGEST_S = 2.0
"""How long bytes are received."""
MOST_BYTES = 64 << 20
LEAST_BYTES = 4 << 20
"""Bytes that must have arrived, or been on their way for :data:`LONGEST_S`, to distinguish a rate from a round trip."""
PARTING_S = 0.5
"""How long after that the publisher may take to notice that the reader is done."""
RESOLVE_S = 3.0
"""How long beyond its own deadline a measurement is waited for."""
_STREAMS = 8
_PIECE = 256 << 10
_READ = 8 << 10


def probe(
    announcement: Announcement,
    token: str,
    *,
    longest_s: float = LONGEST_S,
    most_bytes: int = MOST_BYTES,
) -> Link:
    """Measure the connection to the first of the version's publishers that delivers, by ranges of its data, which are not
    kept. Whatever the publisher does, it ends within ``longest_s`` and half a second (three seconds if its name is
    not resolved) and has then received at most ``most_bytes`` of bodies. Raises :class:`WeightsError` with the reason
    if it cannot measure."""
    if announcement.size < LEAST_BYTES:
        size = announcement.size / 1e6
        raise WeightsError(f"a version of {size:.1f} MB is too small to measure bandwidth")
    found: Future[Link] = Future()

    def measure() -> None:
        try:
            found.set_result(_measure(announcement, token, longest_s, most_bytes))
        except BaseException as error:  # noqa: BLE001 (raised again by the caller)
            found.set_exception(error)

    # A name lookup has no deadline, so a lookup that does not return is abandoned.
    threading.Thread(target=measure, name="probe", daemon=True).start()
    try:
        return found.result(longest_s + RESOLVE_S)
    except TimeoutError:
        places = ", ".join(announcement.endpoints)
        raise WeightsError(f"{places} did not answer within {longest_s:g} s") from None


def _measure(announcement: Announcement, token: str, longest_s: float, most_bytes: int) -> Link:
    until = time.monotonic() + longest_s
    problems = []
    for endpoint in announcement.endpoints:
        meter, round_trip_s = _Meter(until), longest_s
        try:
            with (
                closing(ConnectionPool(_STREAMS * MOST_FACTOR)) as pool,
                VersionClient(
                    announcement,
                    endpoint,
                    token,
                    until + PARTING_S,
                    _STREAMS,
                    failures=0,
                    stall_s=longest_s + 2 * PARTING_S,
                    pool=pool,
                ) as client,
            ):
                client.keep(client.connect())
                round_trip_s = client.round_trip_s
                size = min(announcement.size, most_bytes)
                pieces = [(at, min(at + _PIECE, size)) for at in range(0, size, _PIECE)]
                with meter.running(), contextlib.suppress(_Enough):
                    BlockTransfer(client, "data", meter).run(pieces)
        except (PublisherFailed, WeightsError, OSError) as error:
            problems.append(f"{endpoint}: {str(error) or type(error).__name__}")
        if meter.conclusive:
            return Link(meter.mb_s(), round_trip_s)
        most_bytes -= meter.received
        if time.monotonic() >= until or most_bytes < LEAST_BYTES:
            break
    raise WeightsError("; ".join(problems) or "it was announced without an address")


class _Enough(Exception):
    """The time is over."""


class _Meter:
    """Counts bytes until a time and lets go of them; see :class:`astraflow_weights.fetch.transfer.Sink`."""

    def __init__(self, until: float) -> None:
        self._until = until
        self._lock = threading.Lock()
        self._seen: list[tuple[float, int]] = []

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Bytes come within the context."""
        self._seen = [(time.monotonic(), 0)]
        try:
            yield
        finally:  # it may have ended in silence
            ended = max(self._seen[-1][0], min(time.monotonic(), self._until))
            self._seen.append((ended, self.received))

    @property
    def received(self) -> int:
        """Bytes of bodies so far."""
        return self._seen[-1][1] if self._seen else 0

    @property
    def conclusive(self) -> bool:
        """Whether enough bytes arrived, or the measurement used all of its time."""
        late = bool(self._seen) and self._seen[-1][0] >= self._until
        return self.received >= (1 if late else LEAST_BYTES)

    def mb_s(self) -> float:
        """The rate over the second half of the time, since connections start slowly, or over all of it if that is
        higher; above 0."""
        began, ended = self._seen[0][0], self._seen[-1][0]
        half = max(seen for seen in self._seen if seen[0] <= (began + ended) / 2)
        late = (self.received - half[1]) / max(ended - half[0], 1e-6)
        return max(late, self.received / max(ended - began, 1e-6)) / 1e6

    def receive(self, connection: Connection, piece: Piece) -> None:
        """Read a piece."""
        scratch = memoryview(bytearray(_READ))
        left = piece[1] - piece[0]
        while left:
            count = connection.read_some(scratch[: min(left, _READ)])
            left -= count
            with self._lock:
                now = time.monotonic()
                self._seen.append((now, self.received + count))
            if now >= self._until:
                raise _Enough

    def missing(self, piece: Piece) -> tuple[Piece, ...]:
        """Nothing is wanted twice."""
        return ()
