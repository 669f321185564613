"""Digests of the files of a checkpoint."""

from __future__ import annotations

from pathlib import Path

import msgspec
import xxhash

from astraflow_core.errors import UserError

_CHUNK = 8 << 20


class FileDigest(msgspec.Struct, frozen=True):
    """Size and xxh3-128 of a file, as hexadecimal digits."""

    bytes: int
    xxh3_128: str


class DamagedCheckpoint(UserError):
    """A file of a checkpoint differs from what was saved."""


def digests(folder: Path) -> dict[str, FileDigest]:
    """The files below ``folder`` by their path in it, read once."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): _digest(path) for path in files}


def verify(folder: Path, expected: dict[str, FileDigest]) -> None:
    """Read all files again; :class:`DamagedCheckpoint` names the first that differs."""
    for name, digest in expected.items():
        path = folder / name
        if not path.is_file():
            raise DamagedCheckpoint(f"checkpoint {folder}: {name} is missing")
        size = path.stat().st_size
        if size != digest.bytes:
            raise DamagedCheckpoint(
                f"checkpoint {folder}: {name} has {size} bytes, {digest.bytes} were saved"
            )
        if _digest(path) != digest:
            raise DamagedCheckpoint(f"checkpoint {folder}: {name} has changed since it was saved")


def _digest(path: Path) -> FileDigest:
    hasher, size = xxhash.xxh3_128(), 0
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            hasher.update(chunk)
            size += len(chunk)
    return FileDigest(size, hasher.hexdigest())
