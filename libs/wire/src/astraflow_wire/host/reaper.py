"""Kills registered processes when the parent of this process exits, even by ``kill -9``.

Started as a file, with the standard library alone, so that it costs little and outlives its parent. ``python reaper.py``
reads lines ``KEY GROUP`` on its standard input: what has the key is running, with its process group (0: none known);
``KEY -1``: it is over.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

VARIABLE = "ASTRAFLOW_EPISODE"
"""Has the key, of an episode or of a connection, in the environment of its processes."""

OVER = -1
LOOK_EVERY_S = 0.02
KILL_FOR_S = 2.0
_PARENT_EVERY_S = 1.0
_READ_BYTES = 1 << 16


def main() -> None:
    """Read keys until the parent is gone; then kill what is running."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    parent, rest = os.getppid(), b""
    running: dict[str, int] = {}
    # A fork of the parent may keep the pipe open, so that the end of the pipe alone is not
    # sufficient.
    while os.getppid() == parent:
        if not select.select([0], [], [], _PARENT_EVERY_S)[0]:
            continue
        if not (piece := os.read(0, _READ_BYTES)):
            break
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            key, _, group = line.decode().partition(" ")
            running[key] = int(group)
            if running[key] == OVER:
                del running[key]
    for each in running.values():
        signal_group(each, signal.SIGKILL)
    kill_by_key(running)


def signal_group(group: int, number: int) -> bool:
    """Whether the process group exists; 0 stands for none."""
    if group <= 0:
        return False
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def kill_by_key(keys: Iterable[str]) -> None:
    """Kill every process that was started with one of ``keys`` in its environment, for ``KILL_FOR_S`` at most."""
    entries = {f"{VARIABLE}={key}".encode() for key in keys}
    until = time.monotonic() + KILL_FOR_S
    while entries and (pids := list(_with_one_of(entries))) and time.monotonic() < until:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(LOOK_EVERY_S)


def _with_one_of(entries: set[bytes]) -> Iterator[int]:
    """Processes that were started with one of ``entries`` in their environment; none where there is no /proc."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if not entries.isdisjoint((folder / "environ").read_bytes().split(b"\0")):
                yield int(folder.name)


if __name__ == "__main__":
    main()
