"""Some blocks of a version, addressed by their place in its file."""

from __future__ import annotations

import bisect
import mmap

from astraflow_core.errors import Refused
from astraflow_weights.shard_plan import Run


class BlockRange:
    """The blocks of ``runs`` in one buffer of memory, which no file system holds; ``len`` is the size of the whole
    file, ``nbytes`` what is here. A slice within one run is a view."""

    def __init__(self, size: int, block_size: int, runs: tuple[Run, ...]) -> None:
        self._size = size
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._places: list[int] = []
        self.nbytes = 0
        for first, last in runs:
            self._starts.append(first * block_size)
            self._stops.append(min(last * block_size, size))
            self._places.append(self.nbytes)
            self.nbytes += self._stops[-1] - self._starts[-1]
        self._mapping = mmap.mmap(-1, self.nbytes) if self.nbytes else None
        self._buffer = memoryview(self._mapping if self._mapping is not None else bytearray())

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, wanted: slice) -> memoryview:
        start, stop, _ = wanted.indices(self._size)
        place = self.check(start, stop)
        return self._buffer[place : place + stop - start]

    def __setitem__(self, wanted: slice, data: memoryview) -> None:
        with self[wanted] as there:
            there[:] = data

    def check(self, start: int, stop: int) -> int:
        """Where in the buffer the bytes from ``start`` to ``stop`` are; :class:`Refused` (404) if not all of them
        are here."""
        run = bisect.bisect_right(self._starts, start) - 1
        if run < 0 or stop > self._stops[run]:
            raise Refused(
                404,
                f"bytes {start} to {stop - 1} are not all here: this is one of several sources of the version, "
                "and its manifest says which of them has what",
            )
        return self._places[run] + start - self._starts[run]

    def release(self) -> None:
        """Give the memory back; it must no longer be used."""
        self._buffer.release()
        if self._mapping is not None:
            self._mapping.close()
