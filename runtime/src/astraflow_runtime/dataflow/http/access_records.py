"""What a dataflow keeps about access: revoked tokens (``access.json``) and who changed the run (``audit.jsonl``)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from astraflow_core.errors import UserError
from astraflow_wire.host.disk import replace_file
from astraflow_wire.http.access import Grant
from astraflow_wire.messages import Message

log = logging.getLogger(__name__)

REVOKED, AUDIT = "access.json", "audit.jsonl"
_LONGEST = 4096
"""Bytes of a request that a line of the audit log shows."""


def read_oldest(directory: Path) -> dict[str, int]:
    """``"ROLE/NAME"`` to the first generation whose tokens are valid; of others none was revoked."""
    file = directory / REVOKED
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, int])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        raise UserError(
            f"{file} cannot be read ({error}), so that revoked tokens would be valid again; restore the file, or "
            "start another run"
        ) from error


class AccessRecords:
    """The files in ``directory``; without one nothing is kept. ``clock``: seconds since 1970."""

    def __init__(
        self, directory: Path | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._directory, self._clock = directory, clock

    def oldest(self) -> dict[str, int]:
        """See :func:`read_oldest`."""
        return {} if self._directory is None else read_oldest(self._directory)

    def write_oldest(self, oldest: Mapping[str, int]) -> None:
        """Replace the file in one piece, readable by its owner."""
        if self._directory is not None:
            self._directory.mkdir(parents=True, exist_ok=True)
            replace_file(self._directory / REVOKED, msgspec.json.encode(dict(oldest)), 0o600)

    def record(self, grant: Grant, path: str, message: Message, outcome: str) -> None:
        """Append a line to the audit log: time, whose token, path, what was asked, and the outcome. One that the disk
        does not take goes to the log of the process."""
        if self._directory is None:
            return
        asked = msgspec.json.encode(message)
        line = msgspec.json.encode(
            {
                "time": self._clock(),
                "role": grant.role,
                "name": grant.name,
                "request": path,
                "asked": msgspec.Raw(asked) if len(asked) <= _LONGEST else f"{len(asked)} bytes",
                "outcome": outcome,
            }
        )
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            with (self._directory / AUDIT).open("ab", buffering=0) as file:
                file.write(line + b"\n")
        except OSError as error:
            log.warning("the audit log cannot be written (%s): %s", error, line.decode())
