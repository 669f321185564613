"""The RaaS's half: leases on versions where they lie, verified on notification."""

from __future__ import annotations

import itertools
import logging
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

from astraflow_core.errors import UserError, WeightsError
from astraflow_core.types import Announcement, WeightSource
from astraflow_plugin_shm.bell import Bell
from astraflow_plugin_shm.mapped import MappedVersion, open_version
from astraflow_plugin_shm.mappings import Mappings
from astraflow_plugin_shm.places import RECEIVED, Ring
from astraflow_weights.failures import PublisherFailed
from astraflow_wire.host.private_folder import PrivateFolder

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_log = logging.getLogger(__name__)


class ShmReceiver:
    """Opens versions; see :class:`astraflow_core.protocols.transport.Receiver`.

    With ``ahead``, the newest version that a publisher announced is leased and verified before it is requested;
    the previous one is then released.
    """

    def __init__(self, directory: Path, *, ahead: bool) -> None:
        try:
            self._folder = PrivateFolder(directory, RECEIVED)
        except OSError as error:
            raise UserError(
                f"transport 'shm' cannot use directory {str(directory)!r}: {error.strerror}; set "
                "directory to the folder in memory that the trainer uses"
            ) from error
        self._count = itertools.count()
        self._opening = threading.Lock()
        self._mappings = Mappings()
        self._leases: dict[Path, MappedVersion] = {}
        self._ahead: MappedVersion | None = None
        self._closed = False
        self._bell = Bell(self._rung) if ahead else None

    def fetch(self, announcement: Announcement, deadline_s: float) -> WeightSource:
        """Lease and verify a version; nothing is copied, so ``bytes_received`` is 0."""
        began = time.monotonic()
        who = f"version {announcement.version} of policy {announcement.policy!r}"
        if not _NAME.fullmatch(announcement.policy) or announcement.version < 0:
            raise WeightsError(f"malformed announcement: {who}")

        def check() -> None:
            if self._closed:
                raise WeightsError(f"{who}: the receiver was closed")
            if time.monotonic() > began + deadline_s:
                raise WeightsError(f"{who}: the deadline passed before every block was verified")

        if not self._opening.acquire(timeout=deadline_s):
            raise WeightsError(f"{who}: the deadline passed while another version was verified")
        try:
            check()
            lease = self._claim_prefetched(announcement) or self._open(announcement, who, check)
            self._leases[lease.path] = lease
        finally:
            self._opening.release()
        manifest = lease.manifest
        return WeightSource(
            policy=manifest.policy,
            version=manifest.version,
            path=lease.path,
            digest=manifest.digest,
            bytes_received=0,
            seconds=time.monotonic() - began,
            kind=manifest.kind,
            base=manifest.base,
        )

    def release(self, source: WeightSource) -> None:
        """End the lease; the publisher may use the file again, so nothing may read the path any longer."""
        if source.path.parent != self._folder.path:
            raise ValueError(f"{source.path} was not returned by this receiver")
        with self._opening:
            lease = self._leases.pop(source.path, None)
            if lease is not None:
                lease.end()
            self._mappings.prune()

    def close(self) -> None:
        """End every lease; closing twice is allowed."""
        self._closed = True
        if self._bell is not None:
            self._bell.close()
        with self._opening:
            if self._ahead is not None:
                self._ahead.end()
                self._ahead = None
            while self._leases:
                self._leases.popitem()[1].end()
            self._mappings.close()
            self._folder.close()

    def _claim_prefetched(self, wanted: Announcement) -> MappedVersion | None:
        """What was verified ahead, if it is the version that is wanted and was not written to since."""
        lease = self._ahead
        if lease is None:
            return None
        has = lease.manifest
        if (has.policy, has.version, has.digest, has.size) != (
            wanted.policy,
            wanted.version,
            wanted.digest,
            wanted.size,
        ):
            return None
        self._ahead = None
        if lease.untouched:
            return lease
        lease.end()
        return None

    def _open(
        self, announcement: Announcement, who: str, check: Callable[[], None]
    ) -> MappedVersion:
        problems: list[str] = []
        for endpoint in announcement.endpoints:
            try:
                name = self._name(announcement)
                lease = open_version(announcement, endpoint, name, self._mappings, check)
            except PublisherFailed as error:
                problems.append(f"{endpoint}: {error}")
            else:
                if self._bell is not None:
                    self._bell.listen_to(endpoint)
                return lease
        reasons = "; ".join(problems) or "it was announced without an address"
        raise WeightsError(f"{who} could not be opened: {reasons}")

    def _rung(self, endpoint: str, ring: Ring) -> None:
        told = Announcement(ring.policy, ring.version, "shm", (endpoint,), ring.digest, ring.size)

        def check() -> None:
            if self._closed:
                raise PublisherFailed("the receiver was closed")

        with self._opening:
            before, self._ahead = self._ahead, None
            if before is not None:
                before.end()
            if self._closed or not _NAME.fullmatch(ring.policy):
                return
            try:
                name = self._name(told)
                self._ahead = open_version(told, endpoint, name, self._mappings, check)
            except PublisherFailed as error:  # fetch reports it, if the version is requested
                _log.debug("version %d was not verified ahead: %s", ring.version, error)

    def _name(self, told: Announcement) -> Path:
        stem = f"{told.policy}-{told.version}-{os.getpid()}-{next(self._count)}"
        return self._folder.path / f"{stem}.safetensors"
