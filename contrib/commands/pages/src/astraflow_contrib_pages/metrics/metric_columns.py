"""``metrics.jsonl`` as columns of numbers, read on from where the last look ended."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from astraflow_contrib_pages.metrics.step_columns import Curve, StepColumns, thinned
from astraflow_runtime.launch.results.metrics import FILE

_PIECE = 512 << 10
"""Bytes that are read at a time; other threads wait while they are decoded."""
_TAIL = 64
"""Bytes before the place of the last look, by which a file that was cut and written on is recognised."""
MUCH = 4 << 20
"""Bytes that are read by a thread of their own, while a sample of the file is shown."""
_FIRST_S = 1.0
"""Seconds for which the sample is shown before the reading begins, so that it does not wait for that."""
_SAMPLES, _SAMPLE = 256, 8 << 10
"""Places of the file that a sample has, and bytes of each, or some lines if they are longer."""


class MetricColumns:
    """The file of one run; any thread may call it. While much of it is unread, replies use a sample of its
    lines, from all its parts."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE
        self._lock = threading.Lock()
        self._looking, self._reading = threading.Lock(), threading.Lock()
        self._sample: StepColumns | None = None
        self._reader: threading.Timer | None = None
        self._size = 0
        self._forget()

    def _forget(self) -> None:
        self._offset, self._tail = 0, b""
        self._all = StepColumns()

    def update(self) -> int:
        """Read what was added; how many bytes of the file are read, which grows with each line."""
        with self._reading:
            try:
                return self._update()
            finally:
                with self._lock:
                    self._sample = self._reader = None

    def _update(self) -> int:
        size = self._stat()
        if size is None:
            with self._lock:
                self._forget()
        elif size != self._offset or self._offset == 0:
            self._read_on()
        return self._offset

    def look(self, whole: bool = True) -> int:
        """As :meth:`update`, but long files are read by a thread: 0 until that is done, and :attr:`share` is its
        progress. Without ``whole`` they are not read: a sample suffices, as for a table of many runs."""
        with self._looking:
            if self._reader is None:
                size = self._stat() or 0
                if size - self._offset <= MUCH or self._reading.locked():
                    return self.update()
                if self._sample is None or size != self._size:
                    sample = sampled(self.path, size)
                    with self._lock:
                        self._size, self._sample = size, sample
                if whole:
                    self._reader = threading.Timer(_FIRST_S, self.update)
                    self._reader.name = f"read {self.path.parent.name}"
                    self._reader.daemon = True
                    self._reader.start()
        return 0

    @property
    def share(self) -> float:
        """How much of the file is read: 1 if nothing is left out."""
        return 1.0 if self._sample is None else min(1.0, self._offset / max(1, self._size))

    def _stat(self) -> int | None:
        """Its size; ``None`` if it does not exist, or is not a file: opening a pipe could block indefinitely."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    def _read_on(self) -> None:
        with self.path.open("rb") as file:
            file.seek(max(0, self._offset - _TAIL))
            if file.read(len(self._tail)) != self._tail:
                with self._lock:
                    self._forget()
            file.seek(self._offset)
            rest = b""
            while piece := file.read(_PIECE):
                whole, hole, _ = (rest + piece).partition(b"\0")
                end = whole.rfind(b"\n") + 1
                with self._lock:
                    self._all.take(whole[:end])
                self._offset += end
                self._tail = (self._tail + whole[:end])[-_TAIL:]
                rest = whole[end:]
                if hole:
                    return

    @property
    def _now(self) -> StepColumns:
        return self._sample or self._all

    @property
    def steps(self) -> int:
        """The largest step so far, of any policy."""
        return self._now.steps

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """All evaluations, in order."""
        return self._now.evaluations

    @property
    def damaged(self) -> int:
        """Lines that are left out."""
        return self._now.damaged

    def names(self) -> list[str]:
        """All figures that any step has."""
        with self._lock:
            return self._now.names()

    def last(self) -> dict[str, dict[str, float]]:
        """The newest value of each figure of each policy."""
        with self._lock:
            return self._now.last()

    def curves(
        self, names: Iterable[str], buckets: int, first: float, last: float
    ) -> dict[str, dict[str, Curve]]:
        """Policy → figure → ``[steps, values]`` of the steps ``first`` to ``last``, downsampled to ``buckets``."""
        with self._lock:
            found = self._now.arrays(set(names))
        return {policy: thinned(own, buckets, first, last) for policy, own in found.items()}

    def of_versions(
        self, names: Iterable[str], most: int
    ) -> dict[str, dict[int, dict[str, float]]]:
        """Policy → version → figures of the step that has published it, of the newest ``most`` steps."""
        with self._lock:
            return self._now.of_versions(names, most)

    def staleness(self, columns: int, first: float, last: float) -> dict[str, dict[str, Any]]:
        """Policy → how many rows of the steps ``first`` to ``last`` were how many versions old, in ``columns`` columns."""
        with self._lock:
            return self._now.staleness(columns, first, last)

    def waiting(self, buckets: int, first: float, last: float) -> dict[str, Curve]:
        """Service → the share of its time that it waited, by step."""
        with self._lock:
            found = self._now.service_arrays()
        return thinned(found, buckets, first, last)


def sampled(path: Path, size: int) -> StepColumns:
    """Whole lines from places all over the first ``size`` bytes of a file, the last ones among them."""
    columns = StepColumns()
    with path.open("rb") as file:
        first = os.pread(file.fileno(), _PIECE, 0).partition(b"\n")[0]
        width = max(_SAMPLE, 4 * len(first))
        last = max(0, size - width)
        places = [*range(0, last, max(1, last // _SAMPLES)), last]
        lines = [
            _whole_lines(os.pread(file.fileno(), width, place), place == 0) for place in places
        ]
    columns.take(b"".join(lines).partition(b"\0")[0])
    columns.damaged = 0  # how many there are is known once all is read
    return columns


def _whole_lines(block: bytes, at_start: bool) -> bytes:
    begin = 0 if at_start else block.find(b"\n") + 1
    return block[begin : block.rfind(b"\n") + 1]
