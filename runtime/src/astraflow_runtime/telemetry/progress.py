"""Reports on standard error that a long operation is still running: a moving line on a terminal, else a line now and then.

Not rich's progress bar: the operation may write its own lines and bars to ``sys.stderr``, such as those of tqdm, which must be shown
as they are.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from astraflow_runtime.telemetry.printable import printable

AFTER_S, EVERY_S, FRAME_S, LOOK_S = 2.0, 30.0, 0.1, 1.0
OTHERS_S = 1.5
"""Seconds for which an unfinished line of another writer is not overwritten."""
_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_PLAIN_FRAMES = "|/-\\"
_DONE = re.compile(r"(\d+) of (\d+)")
_BAR = 12
"""Columns of a bar."""
_CLEAR = "\r\x1b[2K"


class _Shared:
    """``stream`` with a line that moves below what others write."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._lock = stream, threading.RLock()
        self._shown = self._open = False
        self._written = 0.0

    def write(self, text: str) -> int:
        """Write the text of another writer."""
        with self._lock:
            self.clear()
            self._open, self._written = not text.endswith("\n"), time.monotonic()
            return self._stream.write(text)

    def show(self, line: str) -> None:
        """Show the line as it is now, unless another line is being written."""
        with self._lock:
            if self._open and time.monotonic() - self._written < OTHERS_S:
                return
            self._stream.write(("" if self._shown or not self._open else "\n") + _CLEAR + line)
            self._stream.flush()
            self._shown, self._open = True, False

    def clear(self) -> None:
        """Take the line away."""
        with self._lock:
            if self._shown:
                self._stream.write(_CLEAR)
                self._stream.flush()
            self._shown = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def progress(what: str, how_far: Callable[[], str] = lambda: "") -> Iterator[None]:
    """``what`` runs inside the block. If that takes more than two seconds, a terminal shows the elapsed time; other outputs get a line
    then and every thirty seconds. ``how_far()`` is part of it, such as ``"12 of 57 packages"``, of which a terminal shows a bar; it is called
    once a second, by another thread."""
    stream, ended, began = sys.stderr, threading.Event(), time.monotonic()
    shared = _Shared(stream) if _moves(stream) else None

    def report() -> None:
        count, wait, looked, far = 0, AFTER_S, -LOOK_S, ""
        while not ended.wait(wait):
            elapsed = time.monotonic() - began
            if elapsed - looked >= LOOK_S:
                looked, found = elapsed, printable(how_far())
                far = f", {found}" if found else ""
            if shared is None:
                stream.write(f"{printable(what)}{far}: {_duration(elapsed)} so far\n")
                stream.flush()
                wait = EVERY_S
            else:
                shared.show(_line(what, f"{far} {_duration(elapsed)}", count, stream))
                wait = FRAME_S
            count += 1

    thread = threading.Thread(target=report, name="progress", daemon=True)
    if shared is not None:
        sys.stderr = cast(TextIO, shared)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        if shared is not None:
            shared.clear()
            sys.stderr = stream


def _moves(stream: TextIO) -> bool:
    """Whether a line on it can be written again."""
    return stream.isatty() and os.environ.get("TERM") not in (None, "", "dumb")


def _line(what: str, after: str, count: int, stream: TextIO) -> str:
    """One line, narrower than the terminal, without colour where ``NO_COLOR`` (no-color.org) is set; of what does not
    fit, the end of ``what`` is left out."""
    unicode = (stream.encoding or "").lower().replace("-", "") == "utf8"
    after = _bar(after, "█░" if unicode else "#.") + after
    frames = _FRAMES if unicode else _PLAIN_FRAMES
    frame = frames[count % len(frames)]
    room = shutil.get_terminal_size().columns - len(after) - 3
    text = printable(what)
    if len(text) > room:
        text = text[: max(0, room - 3)] + "..."
    if not os.environ.get("NO_COLOR"):
        frame = f"\x1b[36m{frame}\x1b[0m"
    return f"{frame} {text}{after}"


def _bar(text: str, cells: str) -> str:
    """A bar for ``N of M`` in a text; empty if it says nothing such."""
    found = _DONE.search(text)
    if found is None or not (most := int(found[2])):
        return ""
    full = min(_BAR, _BAR * int(found[1]) // most)
    return f" {cells[0] * full}{cells[1] * (_BAR - full)}"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 60 else f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
