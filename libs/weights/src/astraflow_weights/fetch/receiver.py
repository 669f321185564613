"""The RaaS's half: whole, verified versions as files that any process on this host can open."""

from __future__ import annotations

import itertools
import mmap
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from astraflow_core.errors import WeightsError, WireError
from astraflow_core.types import Announcement, Link, Manifest, WeightSource
from astraflow_weights.arrivals import Arrivals
from astraflow_weights.failures import PublisherFailed
from astraflow_weights.fetch.client import FAILURES, MOST_FACTOR, STALL_S, VersionClient
from astraflow_weights.fetch.download import download
from astraflow_weights.fetch.pool import ConnectionPool
from astraflow_weights.fetch.probe import LEAST_BYTES
from astraflow_weights.fetch.recycled_file import OpenFile, RecycledFile
from astraflow_weights.fetch.relay import Relay
from astraflow_weights.fetch.shard_download import download_from
from astraflow_wire.host.private_folder import PrivateFolder
from astraflow_wire.model_files.tensor_file import read_specs

CLOSE_S = 2.0
"""How long a receiver that is closed waits for its fetches, which it cancels."""
RELAY_STALL_S = 5.0
"""A relay that sends nothing for so long is left for the publisher, as it is at its first failure."""

_NAME = re.compile(r"[a-z][a-z0-9_]*")


class HttpReceiver:
    """Fetches versions; see :class:`astraflow_core.protocols.transport.Receiver`. Any number of fetches
    may run at once.

    A transport that knows a cheaper way to some blocks derives from it: it overrides :meth:`prepare`, and
    :meth:`open` and :meth:`discard` to patch a file that it kept.
    """

    def __init__(self, directory: Path, token: str, *, streams: int, relay: bool = False) -> None:
        self.folder = PrivateFolder(directory, "received-")
        self._token, self._streams = token, streams
        self._pool = ConnectionPool(streams * MOST_FACTOR)
        self._relay = Relay(token) if relay else None
        self._spare = RecycledFile(mapped=not relay)
        self._count = itertools.count()
        self._running: set[VersionClient] = set()
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._fetches = 0
        self._closed = False

    def fetch(self, announcement: Announcement, deadline_s: float) -> WeightSource:
        """Fetch and verify a version, from each endpoint in turn until one has delivered the rest."""
        began = time.monotonic()
        who = f"version {announcement.version} of policy {announcement.policy!r}"
        if not _NAME.fullmatch(announcement.policy) or announcement.version < 0:
            raise WeightsError(f"malformed announcement: {who}")
        stem = f"{announcement.policy}-{announcement.version}-{next(self._count)}"
        partial = self.folder.path / f"{stem}.part"
        try:
            with self._counted():
                opened = self.open(partial, announcement)
                try:
                    received, manifest, link = self._fill(
                        announcement, opened, who, began + deadline_s
                    )
                    path = partial.rename(partial.with_name(f"{stem}.safetensors"))
                except BaseException:
                    opened.close()
                    raise
                self._spare.lend(path, opened)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise WeightsError(f"{who} cannot be stored in {self.folder.path}: {error}") from error
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        return WeightSource(
            policy=announcement.policy,
            version=announcement.version,
            path=path,
            digest=announcement.digest,
            bytes_received=received,
            seconds=time.monotonic() - began,
            kind=manifest.kind,
            base=manifest.base,
            link=link,
        )

    def open(self, partial: Path, announcement: Announcement) -> OpenFile:
        """Make and open the file ``partial`` for a version; what it holds counts for nothing until
        :meth:`prepare` says so."""
        return self._spare.reuse(partial, announcement.size) or OpenFile(partial.open("x+b"))

    def prepare(self, client: VersionClient, manifest: Manifest, file: int) -> set[int]:
        """Bring blocks of the version into the open ``file``, which has its size, and return those that
        are there and whose xxh3-128 *is* the manifest's; the others are fetched whole. Called once per
        publisher that is tried, until one has delivered."""
        return set()

    def discard(self, source: WeightSource) -> None:
        """The source is no longer needed: keep its file for the next version, or delete it."""
        self._spare.give(source.path)

    def release(self, source: WeightSource) -> None:
        """Let the source's file go; processes that have it open may keep reading it."""
        if source.path.parent != self.folder.path:
            raise ValueError(f"{source.path} was not returned by this receiver")
        if self._relay is not None:
            self._relay.withdraw(source.policy, source.version)
        self.discard(source)

    def close(self) -> None:
        """End running fetches and delete every file; closing twice is allowed."""
        with self._lock:
            self._closed = True
            for client in self._running:
                client.cancel(WeightsError("the receiver was closed"))
            # A fetch that still makes files would leave the folder behind.
            self._idle.wait_for(lambda: not self._fetches, CLOSE_S)
        if self._relay is not None:
            self._relay.close()
        self._pool.close()
        self._spare.close()
        self.folder.close()

    def _fill(
        self, announcement: Announcement, opened: OpenFile, who: str, deadline: float
    ) -> tuple[int, Manifest, Link | None]:
        done = Arrivals()
        problems: list[str] = []
        received = 0
        try:
            for endpoint in announcement.endpoints:
                client = None
                try:
                    client = self._client(announcement, endpoint, deadline)
                    with self._registered(client), client:
                        manifest = client.manifest()
                        link = self._fetch(client, manifest, opened, done, deadline, problems)
                    _check_tensors(opened.number, manifest)
                    return received + client.received, manifest, link
                except (PublisherFailed, WireError) as error:
                    problems.append(f"{endpoint}: {error}")
                except WeightsError as error:
                    problems.append(f"{endpoint}: {error}, {len(done)} blocks were verified")
                    break
                received += client.received if client else 0
        except BaseException:
            done.fail()
            raise
        done.fail()
        if self._relay is not None:
            self._relay.withdraw(announcement.policy, announcement.version)
        reasons = "; ".join(problems) or "it was announced without an address"
        raise WeightsError(f"{who} could not be fetched: {reasons}")

    def _fetch(
        self,
        client: VersionClient,
        manifest: Manifest,
        opened: OpenFile,
        done: Arrivals,
        deadline: float,
        problems: list[str],
    ) -> Link | None:
        os.truncate(opened.number, manifest.size)
        if self._relay is not None:
            self._relay.offer(manifest, opened.number, done)
        with self._sources(client, deadline):
            done.update(self.prepare(client, manifest, opened.number))
            self._fetch_nearer(client, manifest, opened, done, deadline, problems)
            before, began = _received(client), time.monotonic()
            download_from(client, manifest, opened, done)
        download(client, manifest, opened, done)
        came = _received(client) - before
        if came < LEAST_BYTES:
            return None
        return Link(came / (time.monotonic() - began) / 1e6, client.round_trip_s)

    def _fetch_nearer(
        self,
        client: VersionClient,
        manifest: Manifest,
        opened: OpenFile,
        done: Arrivals,
        deadline: float,
        problems: list[str],
    ) -> None:
        """What a relay has, if the publisher has named one."""
        if client.nearer and len(done) < len(manifest.blocks):
            try:
                nearer = self._client(
                    client.announcement, client.nearer, deadline, 0, RELAY_STALL_S
                )
                with self._registered(nearer), nearer:
                    try:
                        download(nearer, manifest, opened, done)
                    finally:
                        client.count(nearer.received)
            except PublisherFailed as error:
                problems.append(f"relay {client.nearer}: {error}")

    @contextmanager
    def _sources(self, client: VersionClient, deadline: float) -> Iterator[None]:
        """Clients of the sources of the version other than the publisher of its manifest."""
        share = max(1, self._streams // max(1, len(client.named)))
        with ExitStack() as stack:
            found = []
            for source in client.named:
                found.append(self._client(client.announcement, source.url, deadline, streams=share))
                stack.enter_context(self._registered(found[-1]))
                stack.enter_context(found[-1])
            client.sources = tuple(found)
            try:
                yield
            finally:
                client.count(sum(source.received for source in found))
                client.sources = ()

    def _client(
        self,
        announcement: Announcement,
        endpoint: str,
        deadline: float,
        failures: int = FAILURES,
        stall_s: float = STALL_S,
        streams: int = 0,
    ) -> VersionClient:
        return VersionClient(
            announcement,
            endpoint,
            self._token,
            deadline,
            streams or self._streams,
            failures=failures,
            stall_s=stall_s,
            pool=self._pool,
            relay=self._relay,
        )

    @contextmanager
    def _counted(self) -> Iterator[None]:
        with self._lock:
            if self._closed:
                raise WeightsError("the receiver was closed")
            self._fetches += 1
        try:
            yield
        finally:
            with self._lock:
                self._fetches -= 1
                self._idle.notify_all()

    @contextmanager
    def _registered(self, client: VersionClient) -> Iterator[None]:
        with self._lock:
            if self._closed:
                raise WeightsError("the receiver was closed")
            self._running.add(client)
        try:
            yield
        finally:
            with self._lock:
                self._running.discard(client)


def _received(client: VersionClient) -> int:
    return client.received + sum(source.received for source in client.sources)


def _check_tensors(file: int, manifest: Manifest) -> None:
    with mmap.mmap(file, 0, prot=mmap.PROT_READ) as mapping, memoryview(mapping) as view:
        if read_specs(view) != manifest.tensors:
            raise PublisherFailed("its manifest names other tensors than its file")
