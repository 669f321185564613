"""Opens one version where it lies, under a lease, and verifies it."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import xxhash

from astraflow_core.errors import WireError
from astraflow_core.types import Announcement, Manifest
from astraflow_plugin_shm.mappings import Mappings
from astraflow_plugin_shm.places import data_of, folder_of, manifest_of
from astraflow_weights.announced import MAX_MANIFEST, decode_manifest
from astraflow_weights.failures import PublisherFailed
from astraflow_wire.host.private_folder import is_held
from astraflow_wire.model_files.tensor_file import read_specs

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class MappedVersion:
    """A verified version under a name of ours; the lock is the descriptor's. ``written_ns``: when the file had last been
    written to before it was verified."""

    manifest: Manifest
    path: Path
    descriptor: int
    written_ns: int

    @property
    def untouched(self) -> bool:
        """Whether the file has not been written since. Changes that a process makes through its own mapping,
        as the publisher does, are not detected."""
        return os.fstat(self.descriptor).st_mtime_ns == self.written_ns

    def end(self) -> None:
        """Remove our name and let the publisher use the file again."""
        self.path.unlink(missing_ok=True)
        _unlock(self.descriptor)


def open_version(
    announcement: Announcement,
    endpoint: str,
    path: Path,
    mappings: Mappings,
    check: Callable[[], None],
) -> MappedVersion:
    """The announced version of the publisher at ``endpoint``, named ``path`` too.

    ``check`` is called between blocks and may raise. Raises :class:`PublisherFailed`.
    """
    host, folder = folder_of(endpoint)
    try:
        if not is_held(folder):
            raise PublisherFailed(
                f"no living publisher on this host has {folder} (it was made on host {host!r}); processes of "
                "different hosts or containers need a transport that sends, such as http"
            )
        manifest = _manifest(announcement, folder)
        return _leased(announcement, manifest, folder, path, mappings, check)
    except WireError as error:
        raise PublisherFailed(str(error)) from error
    except PermissionError as error:
        raise PublisherFailed(
            f"{error.filename} belongs to another user: run trainer and RaaS as the same user, or use a transport "
            "that sends data over the network"
        ) from error
    except OSError as error:
        raise PublisherFailed(f"{error.filename} cannot be opened: {error.strerror}") from error


def _manifest(announcement: Announcement, folder: Path) -> Manifest:
    place = manifest_of(folder, announcement.policy, announcement.version)
    try:
        descriptor = os.open(place, _OPEN)
    except FileNotFoundError as error:
        raise _dropped(announcement) from error
    with os.fdopen(descriptor, "rb") as file:
        return decode_manifest(file.read(MAX_MANIFEST + 1), announcement)


def _leased(
    announcement: Announcement,
    manifest: Manifest,
    folder: Path,
    path: Path,
    mappings: Mappings,
    check: Callable[[], None],
) -> MappedVersion:
    place = data_of(folder, announcement.policy, announcement.version)
    try:
        descriptor = os.open(place, _OPEN)
    except FileNotFoundError as error:
        raise _dropped(announcement) from error
    named = False
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size != manifest.size:
            raise PublisherFailed(f"{place} has {found.st_size} bytes, not {manifest.size}")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            os.link(place, path)
        except (BlockingIOError, FileNotFoundError) as error:
            raise _dropped(announcement) from error
        named = True
        # Between open and lock the file may have become another version's: then its name is another's.
        if path.stat().st_ino != found.st_ino:
            raise _dropped(announcement)
        _verify(mappings, descriptor, manifest, check)
    except BaseException:
        if named:
            path.unlink(missing_ok=True)
        _unlock(descriptor)
        raise
    return MappedVersion(manifest, path, descriptor, found.st_mtime_ns)


def _verify(
    mappings: Mappings, descriptor: int, manifest: Manifest, check: Callable[[], None]
) -> None:
    size = manifest.block_size
    with memoryview(mappings.of(descriptor)) as view:
        for block, digest in enumerate(manifest.blocks):
            check()
            with view[block * size : (block + 1) * size] as part:
                if xxhash.xxh3_128_digest(part) != digest:
                    raise PublisherFailed(f"block {block} differs from the published one")
        if read_specs(view) != manifest.tensors:
            raise PublisherFailed("its manifest names other tensors than its file")


def _unlock(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing is not enough: a kept mapping has a duplicate
    os.close(descriptor)


def _dropped(announcement: Announcement) -> PublisherFailed:
    return PublisherFailed(f"version {announcement.version} does not exist, or no longer exists")
