"""A child that is forked from a server of this process instead of started: its imports are there already."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence

from astraflow_runtime.forking.becoming import ModuleProcess
from astraflow_runtime.forking.client import ModuleForks

_server: ModuleForks | None = None


def serve_forks() -> None:
    """Keep what this process has imported for its children. Call it before there is a second thread; it does nothing in a process
    that was started and not forked."""
    global _server
    _server = ModuleForks.forked()


async def forked(words: Sequence[str], environment: Mapping[str, str]) -> ForkedChild | None:
    """Fork a process for these words, in its own session; None if that is not possible."""
    if _server is None or not _server.can_fork(words, environment):
        return None
    asked = ModuleProcess(
        list(words), os.getcwd(), dict(environment), new_session=True, dies_with_parent=False
    )
    reading, writing = os.pipe()
    try:
        with open(os.devnull, "rb") as nothing:
            pid = await asyncio.to_thread(_server.start, asked, (nothing.fileno(), -1, writing))
    finally:
        os.close(writing)
    if pid is None:
        os.close(reading)
        return None
    stderr = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stderr), os.fdopen(reading, "rb", buffering=0)
    )
    return ForkedChild(pid, stderr)


class ForkedChild:
    """As an :class:`asyncio.subprocess.Process`, as far as it is needed here."""

    def __init__(self, pid: int, stderr: asyncio.StreamReader) -> None:
        self.pid = pid
        self.stderr = stderr
        loop = asyncio.get_running_loop()
        self._exit: asyncio.Future[int] = loop.create_future()
        self._descriptor = os.pidfd_open(pid)
        loop.add_reader(self._descriptor, self._reap)

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        _, status = os.waitpid(self.pid, 0)
        self._exit.set_result(os.waitstatus_to_exitcode(status))

    async def wait(self) -> int:
        """Wait for the end; the exit code, negative for a signal."""
        return await asyncio.shield(self._exit)
