"""``metrics.jsonl``: one line per acknowledged step, per evaluation and per report of the balance."""

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
    """Appends JSON lines. Lines that an earlier process has written are not written again: a dataflow
    that reads its journal repeats them in the same order, until :meth:`go_on`."""

    def __init__(self, path: Path) -> None:
        ends = _line_ends(path)
        self.folder = path.parent
        self._file = AppendFile(path)
        self._repeated = 0
        self._ends = deque(ends)
        if self._file.size > (whole := ends[-1] if ends else 0):
            self._file.cut(whole)

    def write(self, line: dict[str, Any]) -> None:
        """One line, with the time of day in seconds."""
        if self._ends:
            self._repeated = self._ends.popleft()
            return
        self._file.append((json.dumps({"time": time.time(), **line}) + "\n").encode())

    def go_on(self) -> None:
        """Whatever comes now is new. Lines that the journal does not tell of are cut off: power loss, or a full disk
        and the death of the process, have taken the end of the journal, and these steps will be made again."""
        if self._ends:
            self._file.cut(self._repeated)
            self._ends.clear()

    @property
    def trouble(self) -> str:
        """Why lines are kept in memory; empty if none are."""
        return self._file.trouble

    def write_held(self) -> bool:
        """Write what found no room before; returns whether all of it is written now."""
        return self._file.write_held()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _line_ends(path: Path) -> list[int]:
    """Where each line ends, up to the first that a killed process or power loss has not left whole."""
    if not path.exists():
        return []
    content = path.read_bytes()
    usable = content[:damage] if (damage := content.find(b"\0")) >= 0 else content
    return [match.end() for match in re.finditer(b"\n", usable)]


def finite(figures: Mapping[str, float]) -> dict[str, float | None]:
    """As JSON has it, which knows no number that is not finite: ``None`` in its place."""
    return {key: value if math.isfinite(value) else None for key, value in figures.items()}
