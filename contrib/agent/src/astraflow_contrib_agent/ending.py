"""Ends the processes of an episode, whatever they do."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

GRACE_S = 2.0
LOOK_EVERY_S = 0.02


async def end_episode(group: int, key: str) -> None:
    """End the process group ``group``: it has ``GRACE_S`` to do so by itself. Then kill what has left the group: every
    process whose environment names the episode ``key``."""
    if _signal_group(group, signal.SIGTERM):
        until = asyncio.get_running_loop().time() + GRACE_S
        while _signal_group(group, 0) and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(LOOK_EVERY_S)
        _signal_group(group, signal.SIGKILL)
    await asyncio.to_thread(_kill_stragglers, key)


def _signal_group(group: int, number: int) -> bool:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _kill_stragglers(key: str) -> None:
    entry, until = f"ASTRAFLOW_EPISODE={key}".encode(), time.monotonic() + GRACE_S
    while (pids := list(_of_episode(entry))) and time.monotonic() < until:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(LOOK_EVERY_S)


def _of_episode(entry: bytes) -> Iterator[int]:
    """Processes that were started with ``entry`` in their environment; none where there is no /proc."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if entry in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name)
