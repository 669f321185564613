"""Warnings and errors that processes write into their logs, brought to the person at the launcher."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from astraflow_core.telemetry.logs import parse_line

_MOST_BYTES = 1 << 20
_NUMBER = re.compile(r"(?<![\w-])\d+(\.\d+)?")
"""Not the end of a name, such as raas-1."""

_SURFACED = ("WARNING", "ERROR", "CRITICAL")


class LogWatch:
    """Reads what was added to logs since the last look, or since this was made; a message that differs only
    in its numbers is told once."""

    def __init__(self, logs: Iterable[Path]) -> None:
        self._offsets = {log: log.stat().st_size if log.exists() else 0 for log in logs}
        self._rest = dict.fromkeys(self._offsets, "")
        self._told: set[str] = set()

    def add(self, log: Path) -> None:
        """Read another log, from its beginning if it is new."""
        self._offsets.setdefault(log, log.stat().st_size if log.exists() else 0)
        self._rest.setdefault(log, "")

    def news(self) -> Iterator[str]:
        """New messages, as ``"raas-0: message"``."""
        for log in self._offsets:
            for line in self._lines(log):
                parsed = parse_line(line)
                if parsed is None or parsed[0] not in _SURFACED:
                    continue
                message = f"{log.stem}: {parsed[2]}"
                kind = _NUMBER.sub("", message)
                if kind not in self._told:
                    self._told.add(kind)
                    yield message

    def _lines(self, log: Path) -> list[str]:
        if not log.exists():
            return []
        with log.open("rb") as file:
            file.seek(self._offsets[log])
            data = file.read(_MOST_BYTES)
        self._offsets[log] += len(data)
        *whole, self._rest[log] = (self._rest[log] + data.decode(errors="replace")).split("\n")
        return whole
