"""A file of lines that grows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_LONGEST = 1 << 24


class LineTail:
    """Reads on from where it stopped."""

    def __init__(self, file: Path) -> None:
        self._file, self._offset = file, 0

    def new(self) -> Iterator[bytes]:
        """Whole unread lines; lines that are not consumed are returned again."""
        if not self._file.exists():
            return
        with self._file.open("rb") as file:
            file.seek(self._offset)
            while (line := file.readline(_LONGEST)).endswith(b"\n"):
                self._offset += len(line)
                yield line
