"""Processes that end with their owner, even if the owner is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from astraflow_wire.host import reaper

GRACE_S = 2.0


class ReapedProcesses:
    """Processes that this process starts, with their descendants, each under a key: that of an episode or a connection. They
    end when the key is closed, or with this process, even if it is killed: a separate process, the reaper, knows the open
    keys and kills what has one of them in its environment. Where there is no /proc only process groups are killed."""

    def __init__(self) -> None:
        self._open: dict[str, int] = {}
        self._reaper: subprocess.Popen[bytes] | None = None

    @asynccontextmanager
    async def under(self, key: str) -> AsyncIterator[Callable[[int], None]]:
        """Within the context, processes may be started with ``key`` in their environment, as
        :data:`reaper.VARIABLE`; call the yielded function with their process group, if known.
        Leaving the context kills all of them.
        """
        self._record(key, 0)
        try:
            yield lambda group: self._record(key, group)
        finally:
            await asyncio.shield(self._end(key))

    async def _end(self, key: str) -> None:
        """Give the group ``GRACE_S`` to exit, then kill it, and the processes that have left it."""
        group, clock = self._open[key], asyncio.get_running_loop().time
        if reaper.signal_group(group, signal.SIGTERM):
            until = clock() + GRACE_S
            while reaper.signal_group(group, 0) and clock() < until:
                await asyncio.sleep(reaper.LOOK_EVERY_S)
            reaper.signal_group(group, signal.SIGKILL)
        await asyncio.to_thread(reaper.kill_by_key, [key])
        self._record(key, reaper.OVER)

    def _record(self, key: str, group: int) -> None:
        if group == reaper.OVER:
            del self._open[key]
        else:
            self._open[key] = group
        if self._reaper is not None and _written(self._reaper, {key: group}):
            return
        if self._reaper is not None:  # it was killed or stopped
            self._reaper.kill()
        self._reaper = _start_reaper()
        _written(self._reaper, self._open)


def _start_reaper() -> subprocess.Popen[bytes]:
    # A separate session, so that no signal to this process's group reaches it.
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", reaper.__file__],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    os.set_blocking(process.stdin.fileno(), False)
    return process


def _written(process: subprocess.Popen[bytes], keys: dict[str, int]) -> bool:
    """Whether the reaper was notified; never blocks the event loop."""
    assert process.stdin is not None
    lines = "".join(f"{key} {group}\n" for key, group in keys.items()).encode()
    try:
        return os.write(process.stdin.fileno(), lines) == len(lines)
    except (BrokenPipeError, BlockingIOError):
        return False
