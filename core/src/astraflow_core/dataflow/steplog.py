"""``metrics.jsonl``: one line per acknowledged step, one per evaluation."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any


class StepLog:
    """Appends JSON lines; each reaches the operating system at once."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def write(self, line: dict[str, Any]) -> None:
        """One line, with the time of day in seconds."""
        self._file.write(json.dumps({"time": time.time(), **line}) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()
