"""The trainer's half: a publish renames a filled file and sends a notification."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from pathlib import Path

import msgspec
import zmq

from astraflow_core.errors import UserError, WeightsError
from astraflow_core.types import ExportedTensor, Manifest
from astraflow_plugin_shm.files import SharedFiles, VersionFile
from astraflow_plugin_shm.places import BELL, PREFIX, Ring, data_of, endpoint_of, manifest_of
from astraflow_wire.host.private_folder import PrivateFolder

LONGEST_SOCKET = 100
"""Bytes of a socket's path that every Unix takes."""


class ShmPublisher:
    """Publishes the versions of one policy; see :class:`astraflow_core.protocols.transport.Publisher`.

    Memory: one model per version held, and two files in reserve.
    """

    def __init__(self, policy: str, directory: Path) -> None:
        self._policy = policy
        try:
            self._folder = PrivateFolder(directory, f"{PREFIX}{policy}-")
        except OSError as error:
            raise UserError(
                f"transport 'shm' of policy {policy!r} cannot use directory {str(directory)!r}: "
                f"{error.strerror}; set directory to a folder in memory that can be written"
            ) from error
        bell = self._folder.path / BELL
        if len(str(bell)) > LONGEST_SOCKET:
            self._folder.close()
            raise UserError(f"transport 'shm': directory {str(directory)!r} has too long a path")
        self._files = SharedFiles(policy, self._folder.path)
        self._held: dict[int, VersionFile] = {}
        self._newest = -1
        self._context = zmq.Context()
        self._bell = self._context.socket(zmq.PUB)
        self._bell.linger = 0
        self._bell.bind(f"ipc://{bell}")

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The one place of this publisher."""
        return (endpoint_of(socket.gethostname(), self._folder.path),)

    def publish(
        self,
        version: int,
        tensors: Iterable[ExportedTensor],
        derives_from: int | None = None,
        *,
        base: str | None = None,
    ) -> Manifest:
        """Copy ``tensors`` into shared memory and send a notification. Raises :class:`WeightsError` if ``version`` is
        not above all before it, if the tensors differ from those of the first version, or if memory is full."""
        if self._bell.closed:
            raise WeightsError(f"the publisher of policy {self._policy!r} was closed")
        snapshot, file = self._files.write(version, tensors, derives_from, base)
        folder = self._folder.path
        unnamed = folder / "manifest"
        try:
            unnamed.write_bytes(snapshot.encoded)
            file.move(data_of(folder, self._policy, version))
        except OSError as error:
            file.unlock()
            self._files.reuse(file)
            raise WeightsError(
                f"version {version} cannot be offered in {folder}: {error}"
            ) from error
        self._held[version], self._newest = file, version
        unnamed.rename(manifest_of(folder, self._policy, version))
        file.unlock()
        ring = Ring(self._policy, version, snapshot.manifest.digest, snapshot.manifest.size)
        self._bell.send(msgspec.msgpack.encode(ring), zmq.NOBLOCK)
        return snapshot.manifest

    def retain(self, versions: frozenset[int]) -> None:
        """Drop all but the newest and ``versions``; their readers keep what they have."""
        for version in [v for v in self._held if v != self._newest and v not in versions]:
            manifest_of(self._folder.path, self._policy, version).unlink(missing_ok=True)
            self._files.reuse(self._held.pop(version))

    def close(self) -> None:
        """Remove everything that no reader has; closing twice is allowed."""
        self._bell.close()
        self._context.term()
        while self._held:
            self._held.popitem()[1].forget()
        self._files.close()
        self._folder.close()
