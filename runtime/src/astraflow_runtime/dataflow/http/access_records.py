"""What a dataflow keeps about access: revoked tokens (``access.json``) and, in the audit log, who changed the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from astraflow_core.errors import UserError
from astraflow_runtime.audit_log import AuditLine, write_audit
from astraflow_wire.host.disk import replace_file
from astraflow_wire.http.access import Grant
from astraflow_wire.messages import Message

REVOKED = "access.json"


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
        """Append a line to the audit log: whose token, path, what was asked, and the outcome."""
        if self._directory is None:
            return
        line = AuditLine(
            time=self._clock(),
            id=getattr(message, "id", ""),
            who=getattr(message, "author", ""),
            role=grant.role,
            name=grant.name,
            request=path,
            asked=msgspec.to_builtins(message),
            reason=getattr(message, "reason", ""),
            outcome=outcome,
        )
        write_audit(self._directory, line)
