"""The files of a rollout store: segments of bounded total size, each with an index.

A segment holds one gzip member for each record, so that ``zcat`` prints its JSON lines and a reader
can read any one of them by its location. The index has these locations; a record that it does not
name does not exist. A process never continues the segment of another one: what a killed process
left incomplete stays after the last complete line of its index.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from astraflow_core.errors import UserError
from astraflow_runtime.rollouts.records import FORMAT, IndexLine, Record

FOLDER = "rollouts"
"""The folder of the store in the directory of its run."""
SEGMENTS = 8
"""The number of segments of a full store; the oldest one is deleted as a whole."""
LEVEL = 1
"""The compression level: higher ones take several times as long for a tenth less."""
LARGEST_INDEX = 1 << 30
"""The most bytes that are read of one index."""

_DATA = ".jsonl.gz"
_INDEX = ".index.jsonl"
_NAME = re.compile(r"(?P<writer>.+)-(?P<number>\d{8})" + re.escape(_INDEX))
_encoder = msgspec.json.Encoder()
_lines: msgspec.json.Decoder[IndexLine] = msgspec.json.Decoder(IndexLine)
_records: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """Number ``number`` of the segments of a ``writer``, such as ``dataflow`` or ``trainer-NAME``."""

    writer: str
    number: int

    def data(self, folder: Path) -> Path:
        """The file of its records."""
        return folder / f"{self.writer}-{self.number:08d}{_DATA}"

    def index(self, folder: Path) -> Path:
        """The file of its index."""
        return folder / f"{self.writer}-{self.number:08d}{_INDEX}"


def segments(folder: Path, writer: str | None = None) -> list[Segment]:
    """Those in a folder, of one ``writer`` or of all, each writer's oldest first."""
    found = (_NAME.fullmatch(file.name) for file in folder.glob(f"*{_INDEX}"))
    every = sorted(Segment(match["writer"], int(match["number"])) for match in found if match)
    return [segment for segment in every if writer in (None, segment.writer)]


class SegmentWriter:
    """Appends records to its own segments, and deletes its oldest ones beyond ``max_bytes``. Not
    thread-safe.
    """

    def __init__(self, folder: Path, writer: str, max_bytes: int) -> None:
        self._folder, self._writer, self._max = folder, writer, max_bytes
        folder.mkdir(parents=True, exist_ok=True)
        there = segments(folder, writer)
        self._sizes = {segment: self._size(segment) for segment in there}
        self._next = there[-1].number + 1 if there else 1
        self._files: tuple[Segment, BinaryIO, BinaryIO] | None = None
        self._offset = 0

    def append(self, line: IndexLine, record: bytes) -> bool:
        """Write an encoded ``record`` with its ``line`` of the index; returns whether there was room within the bound for
        one of its size. :class:`OSError` if it cannot be written."""
        member = gzip.compress(record + b"\n", LEVEL, mtime=0)
        if len(member) > self._max // SEGMENTS:
            return False
        try:
            segment, data, index = self._room_for(len(member))
            data.write(member)
            data.flush()
            placed = msgspec.structs.replace(line, offset=self._offset, size=len(member))
            text = _encoder.encode(placed) + b"\n"
            index.write(text)
            index.flush()
        except OSError:
            self.close()  # it is unknown how much of it was written
            raise
        self._offset += len(member)
        self._sizes[segment] += len(member) + len(text)
        self._delete_oldest()
        return True

    def close(self) -> None:
        """Close the files; the next record begins a segment."""
        if self._files is not None:
            self._files[1].close()
            self._files[2].close()
            self._files = None

    def _room_for(self, size: int) -> tuple[Segment, BinaryIO, BinaryIO]:
        if self._files is not None:
            if self._sizes[self._files[0]] + size <= self._max // SEGMENTS:
                return self._files
            self.close()
        segment = Segment(self._writer, self._next)
        self._next += 1
        self._offset, self._sizes[segment] = 0, 0
        # The index last: a segment without an index is never found.
        data = segment.data(self._folder).open("wb")
        try:
            index = segment.index(self._folder).open("wb")
        except OSError:
            data.close()
            raise
        self._files = segment, data, index
        return self._files

    def _delete_oldest(self) -> None:
        while sum(self._sizes.values()) > self._max and len(self._sizes) > 1:
            oldest = min(self._sizes)
            oldest.index(self._folder).unlink(missing_ok=True)
            oldest.data(self._folder).unlink(missing_ok=True)
            del self._sizes[oldest]

    def _size(self, segment: Segment) -> int:
        files = (segment.data(self._folder), segment.index(self._folder))
        return sum(file.stat().st_size for file in files if file.exists())


class IndexTail:
    """Reads the index of a segment as it grows."""

    def __init__(self, folder: Path, segment: Segment) -> None:
        self._folder, self._segment = folder, segment
        self._read = 0

    def new_lines(self) -> Iterator[IndexLine]:
        """New complete lines; none once the segment is deleted. :class:`UserError` if a line is not
        one of this format."""
        path = self._segment.index(self._folder)
        try:
            with path.open("rb") as file:
                file.seek(self._read)
                content = file.read(LARGEST_INDEX)
            written = self._segment.data(self._folder).stat().st_size
        except FileNotFoundError:
            return
        except OSError as error:
            raise UserError(f"{error.filename} cannot be read: {error.strerror}") from error
        whole = content[: content.rfind(b"\n") + 1]
        for text in whole.splitlines(keepends=True):
            try:
                line = _lines.decode(text)
            except msgspec.MsgspecError as error:
                if b"\0" in text:  # a hole, left by power loss
                    return
                raise UserError(
                    f"{path} cannot be read: {error}; another version of AstraFlow may have written it"
                ) from error
            if line.offset + line.size > written:
                return  # power loss took the end of the data
            self._read += len(text)
            yield line


def encode(record: Record) -> bytes:
    """A record as JSON."""
    return _encoder.encode(record)


def decode(text: bytes | str) -> Record:
    """A record from JSON; :class:`msgspec.MsgspecError` if it is invalid."""
    return _records.decode(text)


def read(folder: Path, segment: Segment, line: IndexLine) -> Record:
    """The record that a line of the index names. :class:`UserError` if it no longer exists or is
    damaged.
    """
    try:
        record = decode(record_text(folder, segment, line))
    except msgspec.MsgspecError as error:
        raise damaged(folder, segment, line, error) from error
    check_format(folder, segment, record.format)
    return record


def check_format(folder: Path, segment: Segment, found: int) -> None:
    """:class:`UserError` if a record is of a newer format than this version reads."""
    if found > FORMAT:
        path = segment.data(folder)
        raise UserError(f"{path} has format {found}; this version reads up to {FORMAT}")


def record_text(folder: Path, segment: Segment, line: IndexLine) -> bytes:
    """The JSON of that record. :class:`UserError` as of :func:`read`."""
    path = segment.data(folder)
    try:
        with path.open("rb") as file:
            file.seek(line.offset)
            member = file.read(line.size)
        return gzip.decompress(member)
    except FileNotFoundError as error:
        raise UserError(
            f"{path} is no longer stored: newer rollouts have replaced it; a larger [rollouts] max_mb keeps more"
        ) from error
    except (OSError, EOFError, ValueError, zlib.error) as error:  # ValueError: a negative size
        raise damaged(folder, segment, line, error) from error


def damaged(folder: Path, segment: Segment, line: IndexLine, error: Exception) -> UserError:
    """What is said of a record that cannot be read."""
    path = segment.data(folder)
    return UserError(f"{path}: the record at byte {line.offset} is damaged: {error}")
