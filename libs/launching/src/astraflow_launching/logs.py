"""The log of a process."""

from __future__ import annotations

import os
from pathlib import Path

TAIL_BYTES = 65536


def tail(path: Path, lines: int) -> list[str]:
    """The last lines of a file; none if it does not exist yet."""
    if lines <= 0 or not path.exists():
        return []
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES))
        text = file.read().decode(errors="replace")
    return text.splitlines()[-lines:]
