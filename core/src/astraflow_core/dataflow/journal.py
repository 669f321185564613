"""The append-only log of a run: what was admitted, accepted, served, acknowledged and announced.

``directory/journal/00000000.log`` is a sequence of records: magic ``AFR\\n``, u32 zero, u64 length, u64
xxh3-64 of the payload, payload. Each payload is a frame: a push body exactly as it was received, or a
header of this module. An accepted body is followed by :class:`Accepted`, which says which of its rows
were buffered under which arrival numbers; without it the body was never acknowledged and does not count.
A record that a killed process left half-written ends the log.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec
import xxhash

from astraflow_core.errors import WireError
from astraflow_core.wire.frames import encode_frame
from astraflow_core.wire.messages import AnnouncementMessage

_RECORD = struct.Struct("<4sIQQ")
_MAGIC = b"AFR\n"


class Admitted(msgspec.Struct, frozen=True, tag="admitted", kw_only=True):
    """A prompt became a task; ``cursor`` is the position after it."""

    task: str
    prompt_id: str
    cursor: int


class Accepted(msgspec.Struct, frozen=True, tag="accepted", kw_only=True):
    """The body before this record was accepted: policy → (sequence, arrival) of each buffered row;
    ``group`` and ``first_trajectory`` are its numbers in batches."""

    task: str
    group: int
    first_trajectory: int
    rows: dict[str, list[tuple[int, int]]]


class Ended(msgspec.Struct, frozen=True, tag="ended", kw_only=True):
    """A task ended without an accepted group."""

    task: str
    outcome: str
    reason: str


class Cut(msgspec.Struct, frozen=True, tag="cut", kw_only=True):
    """A batch was cut: arrival numbers of its rows, in order."""

    batch: str
    policy: str
    version: int
    arrivals: list[int]


class Acknowledged(msgspec.Struct, frozen=True, tag="acknowledged", kw_only=True):
    """The update made from a batch is done."""

    batch: str
    policy: str
    version: int
    updates: int


class Released(msgspec.Struct, frozen=True, tag="released", kw_only=True):
    """A checkpoint of the trainer holds all updates up to ``updates``."""

    policy: str
    updates: int


class Announced(msgspec.Struct, frozen=True, tag="announced", kw_only=True):
    """A version was announced."""

    announcement: AnnouncementMessage


Entry = Admitted | Accepted | Ended | Cut | Acknowledged | Released | Announced


class Journal:
    """The log being written. Every record reaches the operating system before the call returns, so it
    survives the death of this process; power loss may take what was not flushed since."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        number = len(list(directory.glob("*.log")))
        self.path = directory / f"{number:08d}.log"
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)

    def body(self, body: bytes | memoryview) -> None:
        """Log a push body verbatim."""
        head = _RECORD.pack(_MAGIC, 0, len(body), xxhash.xxh3_64_intdigest(body))
        size = os.writev(self._file, [head, body])
        if size != len(head) + len(body):
            self._rest(b"".join([head, body])[size:])

    def write(self, entry: Entry) -> None:
        """Log an entry."""
        self.body(encode_frame(entry, []))

    def close(self) -> None:
        """Flush to disk and close."""
        os.fsync(self._file)
        os.close(self._file)

    def _rest(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._file, data) :]


def read_journal(path: Path) -> Iterator[bytes]:
    """The payloads of a log in order, up to a record that was not written whole. A record whose digest is
    wrong although it is whole raises :class:`WireError`: the file was damaged."""
    with path.open("rb") as file:
        while len(head := file.read(_RECORD.size)) == _RECORD.size:
            magic, _, length, digest = _RECORD.unpack(head)
            if magic != _MAGIC:
                raise WireError(f"{path}: expected a record at byte {file.tell() - _RECORD.size}")
            payload = file.read(length)
            if len(payload) < length:
                return
            if xxhash.xxh3_64_intdigest(payload) != digest:
                raise WireError(f"{path}: the record that ends at byte {file.tell()} is damaged")
            yield payload
