"""A request that the server answers, and whose answer may be left before its end."""

from __future__ import annotations

import asyncio


class Following:
    """Made in the task that reads the answer. ``begun``: something came, so the server's scheduler has the request;
    ``told``: the server was requested to abort it."""

    def __init__(self) -> None:
        self.begun = False
        self.told = False
        self._left = False
        self._task = asyncio.current_task()

    def leave(self) -> None:
        """Have the task read no more."""
        if not self._left and self._task is not None:
            self._left = True
            self._task.cancel()

    def was_left(self) -> bool:
        """In the task, after it was cancelled: whether only :meth:`leave` did that, so that it may continue."""
        assert self._task is not None
        if self._left and self._task.cancelling() == 1:
            self._task.uncancel()
            return True
        return False
