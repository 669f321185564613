"""Who added, ended or deleted what: lines of ``audit.jsonl`` in the server's directory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from astraflow_contrib_tinker.work.access import CURRENT
from astraflow_core.errors import Refused
from astraflow_runtime.audit_log import AuditLine, write_audit


class ServerAudit:
    """Appends lines to the file in ``directory``, under the name of the key of now."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def note(self, request: str, asked: Mapping[str, Any], outcome: str = "done") -> None:
        """Write a line."""
        line = AuditLine(
            request=request,
            outcome=outcome,
            asked=dict(asked),
            by="tinker",
            role="client",
            name=CURRENT.get(),
        )
        write_audit(self._directory, line)

    @contextlib.contextmanager
    def noted(self, request: str, **asked: object) -> Iterator[None]:
        """A line for what the block does: that it was done, or why it was refused."""
        try:
            yield
        except Refused as error:
            self.note(request, asked, f"refused: {error}")
            raise
        self.note(request, asked)
