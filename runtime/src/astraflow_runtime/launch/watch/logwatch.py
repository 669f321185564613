"""Warnings and errors that processes write into their logs, brought to the person at the launcher."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from astraflow_runtime.launch.watch.exit_status import signal_name
from astraflow_runtime.telemetry.logs import parse_line

_MOST_BYTES = 1 << 20
_NUMBER = re.compile(r"(?<![\w-])\d+(\.\d+)?")
"""Not the end of a name, such as raas-1."""

_TASK = re.compile(r"^task \S+ failed: ")
_PROMPT = re.compile(r"(?<=prompt )'[^']*'|\(prompt [^)]*\)")
"""What differs between tasks that failed for one cause."""

_KILLED_RANK = re.compile(r"failed \(exitcode: -(\d+)\) local_rank: (\d+) ")
"""What torchrun writes of the first rank that was killed."""

_SURFACED = ("WARNING", "ERROR", "CRITICAL")


class LogWatch:
    """Reads what was added to logs since the last read, or since its creation; messages that differ only in their
    numbers, or in which task failed on which prompt, are reported once. Each rank that was killed is reported, as torchrun
    names it."""

    def __init__(self, logs: Iterable[Path]) -> None:
        self._offsets = {log: log.stat().st_size if log.exists() else 0 for log in logs}
        self._rest = dict.fromkeys(self._offsets, "")
        self._told: set[str] = set()

    def add(self, log: Path) -> None:
        """Read another log, from its beginning if it is new."""
        self._offsets.setdefault(log, log.stat().st_size if log.exists() else 0)
        self._rest.setdefault(log, "")

    def news(self, known: Sequence[str] = ()) -> Iterator[str]:
        """New messages, as ``"raas-0: message"``, except those that repeat what is ``known``."""
        causes = [cause for text in known if (cause := _cause(text))]
        for log in self._offsets:
            for line in self._lines(log):
                if killed := _KILLED_RANK.search(line):
                    yield (
                        f"{log.stem}: rank {killed[2]} was killed by {signal_name(int(killed[1]))}; all ranks "
                        "start again, if there is a checkpoint or a version to continue with"
                    )
                    continue
                parsed = parse_line(line)
                if parsed is None or parsed[0] not in _SURFACED:
                    continue
                cause = _cause(parsed[2])
                failed_task = _TASK.match(parsed[2])
                kind = cause if failed_task else f"{log.stem}: {cause}"
                if kind in self._told or any(cause in each or each in cause for each in causes):
                    continue
                self._told.add(kind)
                more = "; more messages of this kind are in the logs" if failed_task else ""
                yield f"{log.stem}: {parsed[2]}{more}"

    def _lines(self, log: Path) -> list[str]:
        if not log.exists():
            return []
        with log.open("rb") as file:
            file.seek(self._offsets[log])
            data = file.read(_MOST_BYTES)
        self._offsets[log] += len(data)
        *whole, self._rest[log] = (self._rest[log] + data.decode(errors="replace")).split("\n")
        return whole


def _cause(text: str) -> str:
    """A message without what differs each time."""
    return _NUMBER.sub("", _PROMPT.sub("", _TASK.sub("", text))).strip()
