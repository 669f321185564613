"""The journal of a run: entries in order, and the bodies of accepted groups beside them.

``entries.log`` is a sequence of records: magic ``AFJ\\n``, u32 size of the entry, f64 seconds of the run,
u64 xxh3-64 of the entry, u32 xxh32 of all these, then the entry (:mod:`astraflow_core.dataflow.entries`,
msgpack). A record that a killed process left half-written ends the log. ``bodies-00000000.bin`` and its
successors hold push bodies, exactly as received, one after the other; a file of which no row is needed any
more is deleted.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import msgspec
import xxhash

from astraflow_core.dataflow.append_file import AppendFile
from astraflow_core.dataflow.entries import Entry, Place
from astraflow_core.errors import RunFailed, UserError

SEGMENT_BYTES = 64 << 20
"""From this size on a file of bodies is followed by another."""

OTHERS_END_S = 10.0
"""How long the dataflow of a launcher that was killed may take to end."""

_FACTS = struct.Struct("<4sIdQ")
_CHECK = struct.Struct("<I")
_HEAD_SIZE = _FACTS.size + _CHECK.size
_MAGIC = b"AFJ\n"
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Entry)


class Journal:
    """The journal in ``directory``, read by :meth:`entries` and then written. ``clock``: seconds of the
    run. :class:`UserError` if another process has it open."""

    def __init__(
        self, directory: Path, clock: Callable[[], float], segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFailed(f"{directory} cannot be made: {error.strerror}") from error
        self.path = directory
        self._clock, self._segment_bytes = clock, segment_bytes
        self._entries = AppendFile(directory / "entries.log")
        if not self._entries.lock(OTHERS_END_S):
            self._entries.close()
            raise UserError(f"{directory}: another dataflow writes this journal; end it first")
        self._segment = max(self.segments(), default=0)
        self._bodies = AppendFile(self._path(self._segment))
        self._full: list[AppendFile] = []

    # -- reading ---------------------------------------------------------------------------------

    def entries(self) -> Iterator[tuple[float, Entry]]:
        """(seconds, entry) of everything that was written before, in order. A last record that is not
        whole is cut off; a whole one that is damaged raises :class:`RunFailed`."""
        path, size = self._entries.path, self._entries.size
        if size == 0:
            return
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as log:
            position = 0
            while position + _HEAD_SIZE <= size:
                head = log[position : position + _HEAD_SIZE]
                magic, length, seconds, digest = _FACTS.unpack_from(head)
                begin, end = position + _HEAD_SIZE, position + _HEAD_SIZE + length
                if magic != _MAGIC or _head(length, seconds, digest) != head:
                    if not any(log[position:]):
                        break  # what a file system leaves after power was lost
                    raise RunFailed(f"{path}: the record at byte {position} is damaged")
                if end > size:
                    break
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
                yield seconds, entry
                position = end
        if position < size:
            os.truncate(path, position)
            self._entries.size = position

    def body(self, place: Place) -> bytes:
        """A body of before; :class:`RunFailed` if it is not there as it was written."""
        path = self._path(place.segment)
        try:
            with path.open("rb") as file:
                file.seek(place.offset)
                content = file.read(place.size)
        except OSError as error:
            raise RunFailed(f"{path} cannot be read: {error.strerror}") from error
        if xxhash.xxh3_64_intdigest(content) != place.digest:
            raise RunFailed(f"{path}: the group at byte {place.offset} is damaged")
        return content

    # -- writing ---------------------------------------------------------------------------------

    def write(self, entry: Entry) -> None:
        """Add an entry."""
        content = _encoder.encode(entry)
        head = _head(len(content), self._clock(), xxhash.xxh3_64_intdigest(content))
        if self._bodies.holds:
            self._entries.hold(head, content)
        else:
            self._entries.append(head, content)

    def keep(self, body: bytes | memoryview) -> Place:
        """Add a body, before the entry that names it."""
        if self._bodies.size >= self._segment_bytes and not self._bodies.holds:
            self._full.append(self._bodies)
            self._segment += 1
            self._bodies = AppendFile(self._path(self._segment))
        place = Place(self._segment, self._bodies.size, len(body), xxhash.xxh3_64_intdigest(body))
        self._bodies.append(body)
        return place

    def write_held(self) -> bool:
        """Write what found no room before; returns whether all of it is written now."""
        return self._bodies.write_held() and self._entries.write_held()

    @property
    def trouble(self) -> str:
        """Why entries or bodies are kept in memory; empty if they are not."""
        return self._bodies.trouble or self._entries.trouble

    def segments(self) -> list[int]:
        """Numbers of the files of bodies."""
        return sorted(int(path.stem[7:]) for path in self.path.glob("bodies-*.bin"))

    @property
    def segment(self) -> int:
        """The file of bodies that is written now."""
        return self._segment

    def prune(self, needed: Collection[int]) -> None:
        """Delete the files of bodies that are neither needed nor written."""
        for segment in self.segments():
            if segment != self._segment and segment not in needed:
                self._path(segment).unlink()
        for file in [file for file in self._full if not file.path.exists()]:
            self._full.remove(file)
            file.close()

    def sync(self) -> None:
        """Put everything on the disk, so that it survives power loss too. Any thread may call it."""
        full, self._full = self._full, []
        for file in full:
            file.sync()
            file.close()
        self._bodies.sync()
        self._entries.sync()

    def close(self) -> None:
        """Put everything on the disk and close the files."""
        self.write_held()
        self.sync()
        self._bodies.close()
        self._entries.close()

    def _path(self, segment: int) -> Path:
        return self.path / f"bodies-{segment:08d}.bin"


def _head(length: int, seconds: float, digest: int) -> bytes:
    facts = _FACTS.pack(_MAGIC, length, seconds, digest)
    return facts + _CHECK.pack(xxhash.xxh32_intdigest(facts))
