"""Fetches one version from one publisher: parallel ranges, each block verified on arrival."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import threading
import time
from collections import Counter, deque
from urllib.parse import urlsplit
from uuid import uuid4

import msgspec
import xxhash

from astraflow_core.errors import WeightsError
from astraflow_core.types import Announcement, Manifest

MAX_MANIFEST = 64 << 20
"""Longest manifest that is read, in bytes."""
MAX_BLOCK = 64 << 20
BAD_ATTEMPTS = 4
"""How often one block may arrive wrong from one publisher."""
FAILURES = 5
"""Failed requests in a row, with no good block between, after which a publisher is given up."""
STALL_S = 20.0
"""A publisher that sends nothing for so long counts as failed."""
_LONGEST_RUN = 64
_LEAVE_S = 2.0
_READER_HEADER = "AstraFlow-Reader"


class PublisherFailed(Exception):
    """This publisher cannot deliver; another one may."""


class _Retry(Exception):
    """A request failed in a way that may pass."""


class Download:
    """Fills the open ``file`` from ``endpoint`` with verified blocks. ``done`` says which are there; it
    outlives the download, so that another publisher goes on where this one failed.

    A block is received and hashed in a buffer that stays in the cache, and written when it is right: that
    costs less than receiving into a mapping of fresh pages, and a full disk is an error, not a signal.
    """

    def __init__(
        self,
        announcement: Announcement,
        endpoint: str,
        token: str,
        file: int,
        done: set[int],
        streams: int,
        deadline: float,
    ) -> None:
        self._announcement, self._file, self._done = announcement, file, done
        self._streams, self._deadline = streams, deadline
        address = urlsplit(endpoint)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise PublisherFailed("expected an address such as http://host:port")
        self._address = address
        self._path = (
            f"{address.path.rstrip('/')}/v1/weights/{announcement.policy}/{announcement.version}"
        )
        self._headers = {_READER_HEADER: uuid4().hex}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._error: BaseException | None = None
        self._sockets: set[socket.socket] = set()
        self._pending: deque[range] = deque()
        self._bad: Counter[int] = Counter()
        self._failures = 0
        self.received = 0

    def run(self) -> Manifest:
        """Fetch what is missing; returns the manifest when every block is verified. Raises
        :class:`PublisherFailed`, or :class:`WeightsError` at the deadline or if cancelled."""
        late = WeightsError("the deadline passed")
        watchdog = threading.Timer(self._left(), self.cancel, [late])
        watchdog.daemon = True
        watchdog.start()
        connection = self._connection()
        helpers: list[threading.Thread] = []
        try:
            manifest = self._manifest(connection)
            self._put_back(range(len(manifest.blocks)))
            for _ in range(min(self._streams, len(self._pending)) - 1):
                helpers.append(threading.Thread(target=self._help, args=(manifest,), daemon=True))
                helpers[-1].start()
            self._work(manifest, connection)
        except BaseException as error:
            self.cancel(error)
            raise
        finally:
            for helper in helpers:  # none may write to the file after this call
                helper.join()
            watchdog.cancel()
            if self._error is None:
                self._leave(connection)
            self._close(connection)
        if self._error is not None:
            raise self._error
        return manifest

    def cancel(self, error: BaseException) -> None:
        """End the download with ``error``, from any thread."""
        with self._lock:
            self._error = self._error or error
            self._stopped.set()
            for connected in self._sockets:
                with contextlib.suppress(OSError):
                    connected.shutdown(socket.SHUT_RDWR)

    def _work(self, manifest: Manifest, connection: http.client.HTTPConnection) -> None:
        """Fetch runs of blocks until none is left; the connection stays open for the caller."""
        buffer = memoryview(bytearray(min(manifest.block_size, manifest.size)))
        try:
            while (run := self._take()) is not None:
                failure = None
                try:
                    self._fetch(connection, manifest, run, buffer)
                except (_Retry, OSError, http.client.HTTPException) as error:
                    failure = error
                self._put_back(run)
                if failure is not None:
                    self._close(connection)
                    self._pause_after(failure)
        except Exception as error:  # noqa: BLE001 (raised again by run, in the caller's thread)
            self.cancel(error)

    def _help(self, manifest: Manifest) -> None:
        connection = self._connection()
        self._work(manifest, connection)
        self._close(connection)

    def _take(self) -> range | None:
        with self._lock:
            return self._pending.popleft() if self._pending and not self._stopped.is_set() else None

    def _put_back(self, blocks: range) -> None:
        """Queue what is missing of ``blocks``, in runs short enough to keep every stream busy."""
        longest = min(max(len(blocks) // (self._streams * 8), 1), _LONGEST_RUN)
        runs: list[range] = []
        with self._lock:
            for block in blocks:
                if block in self._done:
                    continue
                if runs and runs[-1].stop == block and len(runs[-1]) < longest:
                    runs[-1] = range(runs[-1].start, block + 1)
                else:
                    runs.append(range(block, block + 1))
            self._pending.extend(runs)

    def _pause_after(self, error: Exception) -> None:
        """Wait a little longer after each failure in a row; give the publisher up after some."""
        with self._lock:
            self._failures += 1
            failures = self._failures
        if failures > FAILURES:
            reason = str(error) or type(error).__name__
            raise PublisherFailed(f"{failures} requests failed in a row, the last: {reason}")
        self._stopped.wait(0.05 * 2**failures)

    def _fetch(
        self,
        connection: http.client.HTTPConnection,
        manifest: Manifest,
        run: range,
        buffer: memoryview,
    ) -> None:
        size = manifest.block_size
        start, end = run.start * size, min(run.stop * size, manifest.size)
        response = self._get(connection, "data", {"Range": f"bytes={start}-{end - 1}"})
        if response.status != 206 or response.length != end - start:
            raise PublisherFailed(
                f"answered {response.status} with {response.length} bytes to a range of {end - start}"
            )
        for block in run:
            with buffer[: min(size, manifest.size - block * size)] as view:
                self._read(response, view)
                good = xxhash.xxh3_128_digest(view) == manifest.blocks[block]
                if good:
                    self._store(view, block * size)
            with self._lock:
                if good:
                    self._done.add(block)
                    self._failures = 0
                    continue
                self._bad[block] += 1
                attempts = self._bad[block]
            if attempts == BAD_ATTEMPTS:
                raise PublisherFailed(f"block {block} arrived corrupted {attempts} times")

    def _read(self, response: http.client.HTTPResponse, view: memoryview) -> None:
        position = 0
        while position < len(view):
            with view[position:] as rest:
                count = response.readinto(rest)
            if not count:
                raise _Retry("the connection ended early")
            position += count
        with self._lock:
            self.received += position

    def _store(self, view: memoryview, offset: int) -> None:
        position = 0
        while position < len(view):
            try:
                position += os.pwrite(self._file, view[position:], offset + position)
            except OSError as error:
                raise WeightsError(f"the disk refused a block: {error.strerror}") from error

    def _manifest(self, connection: http.client.HTTPConnection) -> Manifest:
        body = self._manifest_body(connection)
        try:
            manifest = msgspec.msgpack.decode(body, type=Manifest)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise PublisherFailed(f"malformed manifest: {error}") from error
        self._check(manifest)
        return manifest

    def _manifest_body(self, connection: http.client.HTTPConnection) -> bytes:
        while True:
            try:
                response = self._get(connection, "manifest", {})
                if response.length is None or response.length > MAX_MANIFEST:
                    raise PublisherFailed(
                        f"its manifest has {response.length} bytes, at most {MAX_MANIFEST} are read"
                    )
                return response.read()
            except (_Retry, OSError, http.client.HTTPException) as error:
                self._close(connection)
                if self._error is not None:
                    raise self._error from error
                self._pause_after(error)

    def _check(self, manifest: Manifest) -> None:
        """The announcement's digest covers the block digests, so all that they verify is the version."""
        wanted = self._announcement
        digest = xxhash.xxh3_128_hexdigest(b"".join(manifest.blocks))
        if (manifest.digest, digest) != (wanted.digest, wanted.digest):
            raise PublisherFailed(
                f"its manifest has digest {digest}, announced was {wanted.digest}"
            )
        if (manifest.policy, manifest.version) != (wanted.policy, wanted.version):
            raise PublisherFailed(
                f"its manifest is of policy {manifest.policy!r} version {manifest.version}"
            )
        blocks = (
            -(-manifest.size // manifest.block_size) if 0 < manifest.block_size <= MAX_BLOCK else 0
        )
        if manifest.size != wanted.size or blocks != len(manifest.blocks):
            raise PublisherFailed(
                f"its manifest has {len(manifest.blocks)} blocks of {manifest.block_size} bytes for "
                f"{manifest.size} bytes, announced were {wanted.size}"
            )

    def _get(
        self, connection: http.client.HTTPConnection, what: str, headers: dict[str, str]
    ) -> http.client.HTTPResponse:
        self._open(connection, STALL_S)
        connection.request("GET", f"{self._path}/{what}", headers=self._headers | headers)
        response = connection.getresponse()
        if response.status in (200, 206):
            return response
        reason = _error_of(response)
        if response.status >= 500 or response.status == 429:
            raise _Retry(reason)
        raise PublisherFailed(reason)

    def _connection(self) -> http.client.HTTPConnection:
        secure = self._address.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        return kind(self._address.hostname or "", self._address.port)

    def _open(self, connection: http.client.HTTPConnection, patience: float) -> None:
        """Connect if need be, where :meth:`cancel` can reach the socket."""
        connection.timeout = min(patience, max(self._left(), 0.001))
        if connection.sock is None:
            connection.connect()
        connected: socket.socket = connection.sock
        with self._lock:
            self._sockets.add(connected)
        connected.settimeout(connection.timeout)
        if self._stopped.is_set():
            raise _Retry("cancelled")

    def _close(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            self._sockets.discard(connection.sock)
        connection.close()

    def _leave(self, connection: http.client.HTTPConnection) -> None:
        """Tell the publisher that this reader is done; the lease would end by itself."""
        path = f"{self._path}/readers/{self._headers[_READER_HEADER]}"
        with contextlib.suppress(_Retry, OSError, http.client.HTTPException):
            self._open(connection, _LEAVE_S)
            connection.request("DELETE", path, headers=self._headers)
            connection.getresponse().read()

    def _left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())


def _error_of(response: http.client.HTTPResponse) -> str:
    body = response.read(4096)
    try:
        text = str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        text = response.reason
    return f"{response.status}: {text}"
