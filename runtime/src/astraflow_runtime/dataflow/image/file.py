"""The file of an image.

``image`` in the folder of the journal: magic ``AFI\\n``, u32 number of the format, u64 size of the image, u64 xxh3-64 of
it, then the image (:class:`~astraflow_runtime.dataflow.image.schema.Image`, msgpack). A new image is written next to
it, flushed to the disk, and replaces it atomically.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import msgspec
import xxhash

from astraflow_core.errors import AstraFlowError
from astraflow_runtime.dataflow.image.schema import Image
from astraflow_runtime.dataflow.journal.entry_log import ENTRIES
from astraflow_runtime.dataflow.journal.journal import flush_folder
from astraflow_wire.decoding import UNDECODABLE

IMAGE = "image"
PARTIAL = "image.partial"
FORMAT = 2
"""Raise it with every change of what an image holds, or of what that means."""

_HEAD = struct.Struct("<4sIQQ")
_MAGIC = b"AFI\n"
_BEFORE = 64 << 10
"""Bytes of the log before the end of an image by which the log is recognised."""


class Unusable(AstraFlowError):
    """There is an image, and the run cannot continue from it."""


def write_image(folder: Path, image: Image) -> int:
    """Write the image; returns its size in bytes. :class:`OSError` if the disk does not accept it: the previous one is kept."""
    content = msgspec.msgpack.encode(image)
    head = _HEAD.pack(_MAGIC, FORMAT, len(content), xxhash.xxh3_64_intdigest(content))
    partial = folder / PARTIAL
    try:
        handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            left = memoryview(head + content)
            while left:
                left = left[os.write(handle, left) :]
            os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(partial, folder / IMAGE)
        flush_folder(folder)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    return len(head) + len(content)


def read_image(folder: Path, written_by: str) -> Image | None:
    """The image in a folder, of the log there; ``None`` if there is none, :class:`Unusable` if it is not whole, or not
    ``written_by`` the same program for the same run, or of another log."""
    path = folder / IMAGE
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unusable(f"{path} cannot be read: {error.strerror}") from error
    if len(content) < _HEAD.size:
        raise Unusable(f"{path} is cut off")
    magic, number, size, digest = _HEAD.unpack_from(content)
    body = memoryview(content)[_HEAD.size :]
    if magic != _MAGIC or (number == FORMAT and len(body) != size):
        raise Unusable(f"{path} is damaged or cut off")
    if number != FORMAT:
        raise Unusable(f"{path} has format {number}, and this version reads {FORMAT}")
    if xxhash.xxh3_64_intdigest(body) != digest:
        raise Unusable(f"{path} is damaged")
    try:
        image = msgspec.msgpack.decode(body, type=Image)
    except UNDECODABLE as error:
        raise Unusable(f"{path} cannot be decoded: {error}") from error
    if image.written_by != written_by:
        raise Unusable(f"{path} was written by another version, or for another config")
    if image.before != digest_before(folder, image.end):
        raise Unusable(f"{path} belongs to another journal than {folder / ENTRIES}")
    return image


def digest_before(folder: Path, end: int) -> int:
    """The digest of the log before byte ``end``; 0 if it is shorter."""
    begin = max(0, end - _BEFORE)
    with (folder / ENTRIES).open("rb") as log:
        log.seek(begin)
        content = log.read(end - begin)
    return xxhash.xxh3_64_intdigest(content) if len(content) == end - begin else 0
