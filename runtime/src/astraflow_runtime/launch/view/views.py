"""What a person sees of a run while it continues."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TextIO

from astraflow_core.config.models import RunConfig
from astraflow_core.protocols.launcher import ProcessState
from astraflow_wire.status import Status

_CANNOT_MOVE = ("", "dumb", "unknown")
"""Values of ``TERM`` of what has no cursor."""


class View(Protocol):
    """Called by the supervisor; never blocks it."""

    def show(self, status: Status, processes: Sequence[ProcessState]) -> None:
        """The newest state of the run."""

    def say(self, message: str) -> None:
        """Something happened that a person should know."""

    def close(self) -> None:
        """The run has ended; what is shown stays on the screen."""


def make_view(
    config: RunConfig,
    live: bool | None,
    stream: TextIO | None = None,
    directory: Path | None = None,
    header: str = "",
) -> View:
    """The moving picture if ``stream`` (default: stdout) is a terminal that can show one and ``live`` is not false,
    else plain lines. ``header`` comes first."""
    stream = sys.stdout if stream is None else stream
    if live is not False and _can_move(stream):
        from astraflow_runtime.launch.view.live import LiveView

        return LiveView(config, stream, directory, header)
    from astraflow_runtime.launch.view.plain import PlainView

    stream.write(header)
    stream.flush()
    return PlainView(config, stream)


def _can_move(stream: TextIO) -> bool:
    """Not if written lines stay, as in the log of a CI job, which may have a terminal without a viewer."""
    watched = os.environ.get("CI", "").lower() in ("", "0", "false")
    return stream.isatty() and watched and os.environ.get("TERM", "").lower() not in _CANNOT_MOVE
