"""``metrics.jsonl``: one line per acknowledged step, per evaluation and per report of the balance."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from astraflow_core.dataflow.append_file import AppendFile


class StepLog:
    """Appends JSON lines. Lines that a process of before has written are not written again: a dataflow
    that reads its journal repeats them in the same order, until :meth:`go_on`."""

    def __init__(self, path: Path) -> None:
        self._repeated = _whole_lines(path)
        self._file = AppendFile(path)

    def write(self, line: dict[str, Any]) -> None:
        """One line, with the time of day in seconds."""
        if self._repeated:
            self._repeated -= 1
            return
        self._file.append((json.dumps({"time": time.time(), **line}) + "\n").encode())

    def go_on(self) -> None:
        """Whatever comes now is new."""
        self._repeated = 0

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


def _whole_lines(path: Path) -> int:
    """How many lines are there; what a killed process left of another is cut off."""
    if not path.exists():
        return 0
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)
    return content.count(b"\n")
