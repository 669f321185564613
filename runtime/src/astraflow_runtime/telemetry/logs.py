"""Structured logs: one line per record on stderr, also parsed by the launcher.

A line is ``TIME LEVEL NAME message key=value …``; keys are what a call passes in ``extra``. A traceback
follows in indented lines.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections import deque
from typing import Any, TextIO

from astraflow_core.shared_secret import MARK
from astraflow_runtime.telemetry.printable import printable
from astraflow_wire.host.disk import says_full

MOST_KEPT = 1000
"""The most lines held while the disk is full."""

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_BEARER = re.compile(r"(?i)(bearer\s+)\S+")
_QUIET = ("httpx", "httpcore", "uvicorn", "asyncio", "urllib3", "filelock", "matplotlib")
_LINE = re.compile(r"\S+ (DEBUG|INFO|WARNING|ERROR|CRITICAL) (\S+) (.*)")


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return text if text and not re.search(r"[\s=\"]", text) else repr(text)


class LineFormatter(logging.Formatter):
    """Formats a record as one line that is safe for a terminal; ``secret`` and bearer tokens are
    replaced by ``***``.
    """

    def __init__(self, name: str, secret: str = "") -> None:
        super().__init__()
        self.name = name
        # What a process shows, and what it shares with others, may each stand alone.
        self.secrets = [part for part in (secret, *secret.split(MARK)) if part]

    def format(self, record: logging.LogRecord) -> str:
        """The line, and the indented traceback if the record has one."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(record.created))
        message = record.getMessage().replace("\r", "").replace("\n", " ⏎ ")
        extra = "".join(
            f" {key}={_value(value)}" for key, value in vars(record).items() if key not in _STANDARD
        )
        line = f"{moment}.{int(record.msecs):03d} {record.levelname} {self.name} {message}{extra}"
        if record.exc_info and record.exc_info[0] is not None:
            traceback = self.formatException(record.exc_info)
            line += "".join(f"\n    {part}" for part in traceback.splitlines())
        return printable(self._redact(line))

    def _redact(self, line: str) -> str:
        for secret in self.secrets:
            line = line.replace(secret, "***")
        return _BEARER.sub(r"\1***", line)


class KeepingHandler(logging.StreamHandler[TextIO]):
    """Writes lines to a stream. While the disk is full, up to :data:`MOST_KEPT` lines are held and
    written before the next one, so that the log shows why a process waited.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._kept: deque[str] = deque(maxlen=MOST_KEPT)
        self._torn = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, or hold it."""
        try:
            self._kept.append(self.format(record) + self.terminator)
            while self._kept:
                # Do not append to a line that was written only in part.
                self.stream.write("\n" * self._torn + self._kept[0])
                self.flush()
                self._torn = False
                self._kept.popleft()
        except OSError as error:
            if not says_full(error):
                self._kept.clear()
                self.handleError(record)
            self._torn = True
        except Exception:  # noqa: BLE001 (as every handler: a log must not end its process)
            self._kept.clear()
            self.handleError(record)


def configure_logging(name: str, level: str = "INFO") -> None:
    """Send the logs of this process to stderr as ``name`` (``"dataflow"``, ``"raas-0"`` …).

    ``ASTRAFLOW_LOG_LEVEL`` overrides ``level``; libraries that log every request are kept to warnings.
    """
    handler = KeepingHandler(sys.stderr)
    handler.setFormatter(LineFormatter(name, os.environ.get("ASTRAFLOW_TOKEN", "")))
    logging.basicConfig(
        handlers=[handler], level=os.environ.get("ASTRAFLOW_LOG_LEVEL", level).upper(), force=True
    )
    for library in _QUIET:
        logging.getLogger(library).setLevel(logging.WARNING)
    logging.captureWarnings(True)


def parse_line(line: str) -> tuple[str, str, str] | None:
    """Level, name and the rest of a line of :class:`LineFormatter`; ``None`` for any other text."""
    match = _LINE.fullmatch(line.rstrip("\n"))
    return (match[1], match[2], match[3]) if match else None
