"""A server started as a child process, or one that is already running; how it is started and why it ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from astraflow_core.errors import DeadlineExceeded, PreflightError, RunFailed
from astraflow_serving.http import ServerClient, ServerRefused, ServerSilent
from astraflow_wire.host.disk import room_for

_STOP_S = 1.5
_LOOK_EVERY_S = 0.2
_LAST_LINES = 12
_SECRET = "ASTRAFLOW_TOKEN"
Causes = Sequence[tuple[str, str]]
"""Patterns in what a server says → what it means and what to do."""


@dataclass(frozen=True, slots=True)
class AttachedServer:
    """A server that was started elsewhere, and that is neither started nor stopped here."""

    label: str
    url: str

    async def start(self) -> None:
        """Check that the server responds."""
        client = ServerClient(f"{self.label} server", self.url, 10.0)
        try:
            await client.get("/health")
        except (ServerSilent, ServerRefused, DeadlineExceeded) as error:
            raise PreflightError(
                f"no {self.label} server answers at url = {self.url!r}: {error}; start it, or remove "
                "the key to let the engine start one"
            ) from error
        finally:
            await client.close()

    async def why_gone(self) -> str | None:
        """None: why the server is gone is not known here."""
        return None

    def kill(self) -> None:
        """Does nothing: the server was not started here."""

    async def stop(self) -> None:
        """Does nothing: the server was not started here."""


class ChildServer:
    """A server in its own process group, which does not outlive this process.

    ``command`` is run under :mod:`astraflow_serving.guard` with ``environment``; its output goes to
    ``log_file``, which errors quote with the first of ``causes`` that fits. It is ready when ``/health`` of
    ``url`` answers.
    """

    def __init__(
        self,
        label: str,
        url: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        log_file: Path,
        start_deadline_s: float,
        causes: Causes,
    ) -> None:
        self.label = label
        self.url = url
        self.command = list(command)
        self.environment = {k: v for k, v in environment.items() if k != _SECRET}
        self._log_file = log_file
        self._deadline_s = start_deadline_s
        self._causes = causes
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """The process, which is also its group."""
        assert self._process is not None
        return self._process.pid

    def _open_log(self) -> BinaryIO:
        self._log_file.parent.mkdir(parents=True, exist_ok=True)
        return self._log_file.open("wb")

    async def start(self) -> None:
        """Start it and wait until it is ready. Raises :class:`RunFailed` with its last lines and, if they
        are known, the cause and the remedy; :class:`DeadlineExceeded` if it takes too long."""
        with await room_for(self._open_log, self._log_file) as output:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "astraflow_serving.guard", *self.command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                env=self.environment,
                process_group=0,
            )
        try:
            await self._ready(self._process)
        except BaseException:
            await self.stop()
            raise

    async def _ready(self, process: asyncio.subprocess.Process) -> None:
        give_up = time.monotonic() + self._deadline_s
        client = ServerClient(f"{self.label} server", self.url, self._deadline_s)
        try:
            while (left := give_up - time.monotonic()) > 0:
                if process.returncode is not None:
                    raise RunFailed(
                        f"the {self.label} server {_end(process.returncode)} before it was ready"
                        f"{self._log_excerpt()}"
                    )
                with contextlib.suppress(ServerSilent, ServerRefused, DeadlineExceeded):
                    await client.get("/health", left)
                    return
                await asyncio.sleep(_LOOK_EVERY_S)
        finally:
            await client.close()
        raise DeadlineExceeded(
            f"the {self.label} server", f"its start{self._log_excerpt()}", self._deadline_s
        )

    async def why_gone(self) -> str | None:
        """How the process ended; a process that is about to exit gets a second for it."""
        assert self._process is not None
        code = await _ended_within(self._process, 1.0)
        return (
            None if code is None else f"the {self.label} server {_end(code)}{self._log_excerpt()}"
        )

    def _log_excerpt(self) -> str:
        text = self._log_file.read_text(encoding="utf-8", errors="replace")
        cause = next(
            (f": {said}" for pattern, said in self._causes if re.search(pattern, text)), ""
        )
        lines = "\n  ".join(text.splitlines()[-_LAST_LINES:])
        return f"{cause}; its last lines (all: {self._log_file}):\n  {lines}"

    def kill(self) -> None:
        """Kill its process group."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def stop(self) -> None:
        """Ask it to end, then kill what is left of its group."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGCONT)  # one that is stopped ends as well
                self._process.terminate()
            await _ended_within(self._process, _STOP_S)
            self.kill()
            await self._process.wait()


async def _ended_within(process: asyncio.subprocess.Process, seconds: float) -> int | None:
    # Not wait_for, which until Python 3.12 may swallow a cancellation.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await process.wait()
    return process.returncode


def _end(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    hint = " (out of memory?)" if code == -signal.SIGKILL else ""
    return f"was killed by {signal.Signals(-code).name}{hint}"


def free_port(port: int | None) -> int:
    """``port``, or one that is free on loopback. Raises :class:`PreflightError` if another process listens
    on it: a health check would then reach that one."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port or 0))
        except OSError as error:
            raise PreflightError(
                f"port {port} is already in use ({error.strerror}): set another one, or remove the key `port` to "
                "use a free port"
            ) from error
        chosen: int = probe.getsockname()[1]
        return chosen
