"""A full disk under a run, as its launcher sees it: the processes wait for disk space, and so does the launcher."""

from __future__ import annotations

import time
from pathlib import Path

from astraflow_runtime.launch.view.formatting import duration
from astraflow_runtime.launch.view.views import View
from astraflow_runtime.launch.watch.signals import Interrupts
from astraflow_wire.host.disk import LONGEST_WAIT_S, LOOK_S, lacking

SETTLED_S = 10.0
"""How long there must be disk space before it is reported: a process that repeatedly tries to write a large file frees
its part of it each time for a moment."""


class RoomWatch:
    """Reports once that there is no disk space in the run directory, and once that there is again: the processes may be
    unable to write it to their logs."""

    def __init__(self, directory: Path, view: View) -> None:
        self._directory, self._view = directory, view
        self._since: float | None = None
        self._room_since: float | None = None
        self._looked = -LOOK_S
        self._lacks = False

    def lacks(self) -> bool:
        """Whether there is no room, or has been for a few seconds only, as of a second ago at most; and that for less
        than a day."""
        now = time.monotonic()
        if now - self._looked >= LOOK_S:
            self._looked = now
            self._note(lacking(self._directory), now)
        return self._lacks

    def _note(self, reason: str, now: float) -> None:
        if reason and self._since is None:
            self._since = now
            self._view.say(
                f"the disk is full: {reason}. Nothing is lost: all processes wait and continue as soon as there "
                "is disk space; a process that dies is restarted"
            )
        elif reason:
            self._room_since = None
        elif self._since is not None:
            self._room_since = now if self._room_since is None else self._room_since
            if now - self._room_since >= SETTLED_S:
                self._say_room_again()
        self._lacks = self._since is not None and now - self._since < LONGEST_WAIT_S

    def _say_room_again(self) -> None:
        if self._since is not None and self._room_since is not None:
            waited = duration(self._room_since - self._since)
            self._view.say(f"there is disk space again after {waited}")
            self._since, self._room_since, self._lacks = None, None, False

    def wait(self, interrupts: Interrupts) -> None:
        """Wait for disk space, or for a signal, once no process tries to write: any space is reported at once."""
        while self.lacks() and self._room_since is None and interrupts.number is None:
            interrupts.sleep(LOOK_S)
        self._say_room_again()
