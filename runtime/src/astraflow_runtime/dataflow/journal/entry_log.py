"""The format of a journal's ``entries.log``.

A sequence of records: magic ``AFJ\\n``, u32 size of the entry, f64 seconds of the run, u64 xxh3-64 of the entry,
u32 xxh32 of all these, then the entry (:mod:`astraflow_runtime.dataflow.journal.entries`, msgpack).
The first incomplete record ends the log: the process was killed, power was lost (file systems then
leave zeros, holes and pieces in any order), or another process is writing it. Within what was
flushed (:mod:`astraflow_runtime.dataflow.journal.flushed`) an incomplete record is damage.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import xxhash

from astraflow_core.errors import RunFailed
from astraflow_runtime.dataflow.journal.entries import Entry
from astraflow_runtime.dataflow.journal.flushed import read_flushed
from astraflow_wire.decoding import UNDECODABLE

ENTRIES = "entries.log"

_FACTS = struct.Struct("<4sIdQ")
_CHECK = struct.Struct("<I")
_HEAD_SIZE = _FACTS.size + _CHECK.size
_MAGIC = b"AFJ\n"
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Entry)


class JournalRecord(NamedTuple):
    """An entry, written ``at_s`` seconds into the run, and the byte at which its record ends."""

    at_s: float
    entry: Entry
    end: int


def encode_record(entry: Entry, seconds: float) -> tuple[bytes, bytes]:
    """Head and content of a record."""
    content = _encoder.encode(entry)
    return _head(len(content), seconds, xxhash.xxh3_64_intdigest(content)), content


def read_records(path: Path, begin: int = 0) -> Iterator[JournalRecord]:
    """All complete records of the file at ``path``, in order, from the one at byte ``begin``.
    :class:`RunFailed` if a flushed record is damaged or its entry is of another version.
    """
    flushed = read_flushed(path.parent)  # first: the log may grow meanwhile
    position, size = begin, path.stat().st_size
    if size > begin:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as log:
            size = len(log)
            while (record := _record_at(log, position)) is not None:
                seconds, content = record
                position += _HEAD_SIZE + len(content)
                yield JournalRecord(seconds, _decoded(content, path, position), position)
    if position < flushed.entries:
        found = (
            "is damaged" if size >= flushed.entries else f"is cut off; the file has {size} bytes"
        )
        raise RunFailed(
            f"{path}: the record at byte {position} {found}, and {flushed.entries} bytes had been flushed to the disk. "
            "Restore the file, or begin a new run from a checkpoint"
        )


def _record_at(log: mmap.mmap, position: int) -> tuple[float, bytes] | None:
    """Seconds and content of the record that begins there; ``None`` if it is incomplete."""
    head = log[position : position + _HEAD_SIZE]
    if len(head) < _HEAD_SIZE:
        return None
    magic, length, seconds, digest = _FACTS.unpack_from(head)
    whole = magic == _MAGIC and _head(length, seconds, digest) == head
    if not whole or not math.isfinite(seconds):
        return None
    content = log[position + _HEAD_SIZE : position + _HEAD_SIZE + length]
    whole = len(content) == length and xxhash.xxh3_64_intdigest(content) == digest
    return (seconds, content) if whole else None


def _decoded(content: bytes, path: Path, end: int) -> Entry:
    try:
        entry: Entry = _decoder.decode(content)
    except UNDECODABLE as error:
        raise RunFailed(
            f"{path}: the record that ends at byte {end} is not of this version of astraflow-runtime: {error}"
        ) from error
    return entry


def _head(length: int, seconds: float, digest: int) -> bytes:
    facts = _FACTS.pack(_MAGIC, length, seconds, digest)
    return facts + _CHECK.pack(xxhash.xxh32_intdigest(facts))
