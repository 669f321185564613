"""``audit.jsonl`` of a run: who changed it while it ran, when, why, and the outcome. All lines are written and read
here."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any, Literal

import msgspec

from astraflow_wire.redaction import hidden_texts, redacted, without_secrets

log = logging.getLogger(__name__)

FILE = "audit.jsonl"
MOST_SHOWN = 200
_LONGEST = 4096
"""Bytes of what was asked that a line shows."""
_TAIL = 1 << 20
"""Bytes at the end of the file that are read."""


class AuditLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the file, as docs/security.md has it.

    ``by``: what wrote it; the dataflow writes what it did, the pages and the server of agents the action of their user,
    before they call the dataflow and after it, a pool of RaaS who joined it, and a Tinker server who added, ended or
    deleted what. Lines of one action have the same ``id``. ``who``: the user, as the request says; ``role`` and
    ``name``: of the token, or the name of a login of the pages. ``request``: path below the dataflow; ``asked``: its
    parameters, or how long they are. ``outcome``: ``asked``, ``done``, ``refused: …`` or ``failed: …``. ``time``:
    seconds since 1970.
    """

    request: str
    outcome: str
    asked: dict[str, Any] | str = {}
    by: Literal["dataflow", "pages", "mcp", "pool", "tinker"] = "dataflow"
    id: str = ""
    who: str = ""
    role: str = ""
    name: str = ""
    reason: str = ""
    time: float = msgspec.field(default_factory=time.time)


def write_audit(run: Path, line: AuditLine) -> None:
    """Append the line without its secrets. One that the disk does not take goes to the log of the process: what it is about
    is done all the same, since a run whose disk is full must still be stoppable."""
    known = hidden_texts(line.asked)
    shown = without_secrets(line.asked)
    size = len(msgspec.json.encode(shown, enc_hook=str))
    text = msgspec.json.encode(
        msgspec.structs.replace(
            line,
            asked=shown if size <= _LONGEST else f"{size} bytes",
            outcome=redacted(line.outcome, known),
            reason=redacted(line.reason, known),
        ),
        enc_hook=str,
    )
    try:
        run.mkdir(parents=True, exist_ok=True)
        with (run / FILE).open(
            "ab", buffering=0
        ) as file:  # one write: lines of several processes stay whole
            file.write(text + b"\n")
    except OSError as error:
        log.warning("the audit log cannot be written (%s): %s", error, text.decode())


def read_audit(run: Path, most: int = MOST_SHOWN) -> list[AuditLine]:
    """The newest actions, the last one first, one for all lines of the same ``id`` and ``request``: with the time and the reason of the
    first line, the outcome of the last one, and the parameters and the token as the dataflow saw them. A line that a killed
    process left unfinished is passed over."""
    found: dict[tuple[str, str], AuditLine] = {}
    for number, text in enumerate(_newest(run / FILE)):
        try:
            line = msgspec.json.decode(text, type=AuditLine)
        except msgspec.DecodeError:
            continue
        key = (line.id or f"line {number}", line.request)
        before = found.get(key)
        found[key] = line if before is None else _joined(before, line)
    return list(found.values())[-most:][::-1]


def _joined(first: AuditLine, later: AuditLine) -> AuditLine:
    seen = later if later.by == "dataflow" else first
    return msgspec.structs.replace(
        first,
        outcome=later.outcome,
        asked=seen.asked,
        role=later.role or first.role,
        name=first.name or later.name,
        reason=first.reason or later.reason,
    )


def _newest(file: Path) -> list[bytes]:
    """Whole lines at the end of the file."""
    try:
        with file.open("rb") as opened:
            begin = max(0, opened.seek(0, 2) - _TAIL)
            opened.seek(begin)
            lines = opened.read(_TAIL).split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    return lines[1:] if begin else lines
