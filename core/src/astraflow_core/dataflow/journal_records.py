"""How entries lie in a journal's ``entries.log``, for its writer and for anybody who looks.

A sequence of records: magic ``AFJ\\n``, u32 size of the entry, f64 seconds of the run, u64 xxh3-64 of the entry,
u32 xxh32 of all these, then the entry (:mod:`astraflow_core.dataflow.entries`, msgpack). A record that a killed
process left half-written, or that another process is about to write, ends the log.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec
import xxhash

from astraflow_core.dataflow.entries import Entry
from astraflow_core.errors import RunFailed

ENTRIES = "entries.log"

_FACTS = struct.Struct("<4sIdQ")
_CHECK = struct.Struct("<I")
_HEAD_SIZE = _FACTS.size + _CHECK.size
_MAGIC = b"AFJ\n"
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Entry)


def encode_record(entry: Entry, seconds: float) -> tuple[bytes, bytes]:
    """Head and content of a record."""
    content = _encoder.encode(entry)
    return _head(len(content), seconds, xxhash.xxh3_64_intdigest(content)), content


def read_records(path: Path) -> Iterator[tuple[float, Entry, int]]:
    """(seconds, entry, where its record ends) of all whole records of the file at ``path``, in order; those that
    are written meanwhile are left out. :class:`RunFailed` if one is damaged."""
    size = path.stat().st_size
    if size == 0:
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as log:
        position = 0
        while position + _HEAD_SIZE <= size:
            head = log[position : position + _HEAD_SIZE]
            magic, length, seconds, digest = _FACTS.unpack_from(head)
            begin, end = position + _HEAD_SIZE, position + _HEAD_SIZE + length
            if magic != _MAGIC or _head(length, seconds, digest) != head:
                if not any(log[position:]):
                    return  # what a file system leaves after power was lost
                raise RunFailed(f"{path}: the record at byte {position} is damaged")
            if end > size:
                return
            content = log[begin:end]
            if xxhash.xxh3_64_intdigest(content) != digest:
                raise RunFailed(f"{path}: the record at byte {position} is damaged")
            try:
                entry = _decoder.decode(content)
            except msgspec.DecodeError as error:
                raise RunFailed(
                    f"{path}: the record at byte {position} is not of this version of "
                    f"astraflow-core: {error}"
                ) from error
            yield seconds, entry, end
            position = end


def _head(length: int, seconds: float, digest: int) -> bytes:
    facts = _FACTS.pack(_MAGIC, length, seconds, digest)
    return facts + _CHECK.pack(xxhash.xxh32_intdigest(facts))
