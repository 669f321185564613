"""The view of a run, including messages of its trackers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from astraflow_core.protocols.launcher import ProcessState
from astraflow_runtime.launch.view.views import View
from astraflow_wire.status import Status

if TYPE_CHECKING:
    from astraflow_runtime.launch.tracking.trackers import Trackers


class TrackedView:
    """``view``, with the news of the trackers in the thread that shows it."""

    def __init__(self, view: View, trackers: Trackers) -> None:
        self._view, self._trackers = view, trackers

    def show(self, status: Status, processes: Sequence[ProcessState]) -> None:
        """The newest state of the run, after the news."""
        for said in self._trackers.news():
            self._view.say(said)
        self._view.show(status, processes)

    def say(self, message: str) -> None:
        """Something happened that a person should know."""
        self._view.say(message)

    def close(self) -> None:
        """The run has ended."""
        self._view.close()
