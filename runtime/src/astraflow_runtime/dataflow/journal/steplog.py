"""``metrics.jsonl``: one line per acknowledged step, per evaluation and per balance report."""

from __future__ import annotations

import json
import math
import re
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from astraflow_runtime.dataflow.journal.append_file import AppendFile


class StepLog:
    """Appends JSON lines. Lines that an earlier process has written are not written again: a
    dataflow that replays its journal repeats them in the same order, until :meth:`resume`.
    ``lines``: those so far, the repeated ones included.
    """

    def __init__(self, path: Path) -> None:
        ends = _line_ends(path)
        self.folder = path.parent
        self._file = AppendFile(path)
        self._repeated = 0
        self.lines = 0
        self._ends = deque(ends)
        if self._file.size > (whole := ends[-1] if ends else 0):
            self._file.cut(whole)

    def write(self, line: dict[str, Any]) -> None:
        """One line, with the time of day in seconds."""
        self.lines += 1
        if self._ends:
            self._repeated = self._ends.popleft()
            return
        self._file.append((json.dumps({"time": time.time(), **line}) + "\n").encode())

    def skip(self, count: int) -> bool:
        """Repeat the first ``count`` lines at once; false if there are fewer."""
        if count > len(self._ends):
            return False
        for _ in range(count):
            self._repeated = self._ends.popleft()
        self.lines += count
        return True

    def resume(self) -> None:
        """Every line from now on is new. Lines that the journal does not contain are truncated:
        power loss, or a full disk and the death of the process, have taken the end of the journal,
        and these steps will be repeated.
        """
        if self._ends:
            self._file.cut(self._repeated)
            self._ends.clear()

    @property
    def trouble(self) -> str:
        """Why lines are held in memory; empty if none are."""
        return self._file.trouble

    def write_held(self) -> bool:
        """Write the data held in memory; returns whether all of it is written now."""
        return self._file.write_held()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _line_ends(path: Path) -> list[int]:
    """The end of each line, up to the first that is incomplete."""
    if not path.exists():
        return []
    content = path.read_bytes()
    usable = content[:damage] if (damage := content.find(b"\0")) >= 0 else content
    return [match.end() for match in re.finditer(b"\n", usable)]


def finite(figures: Mapping[str, float]) -> dict[str, float | None]:
    """The value for JSON, which has no infinities or NaN: ``None`` in their place."""
    return {key: value if math.isfinite(value) else None for key, value in figures.items()}
