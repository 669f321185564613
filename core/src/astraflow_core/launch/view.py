"""What a person sees of a run while it goes on."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Protocol, TextIO

from astraflow_core.config.models import RunConfig
from astraflow_core.launch.status import Status
from astraflow_core.protocols.launcher import ProcessState


class View(Protocol):
    """Called by the supervisor; never blocks it."""

    def show(self, status: Status, processes: Sequence[ProcessState]) -> None:
        """The newest state of the run."""

    def say(self, message: str) -> None:
        """Something happened that a person should know."""

    def close(self) -> None:
        """The run has ended; what is shown stays on the screen."""


def make_view(config: RunConfig, live: bool | None, stream: TextIO | None = None) -> View:
    """The moving picture if ``stream`` (default: stdout) is a terminal and ``live`` is not false, else
    plain lines."""
    stream = sys.stdout if stream is None else stream
    if live is not False and stream.isatty():
        from astraflow_core.launch.live import LiveView

        return LiveView(config, stream)
    from astraflow_core.launch.plain import PlainView

    return PlainView(config, stream)
