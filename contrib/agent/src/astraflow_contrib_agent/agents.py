"""The three ways to run an agent: a function, a command, a service."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import logging
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import msgspec

from astraflow_contrib_agent import zygote
from astraflow_contrib_agent.results import ResultReader
from astraflow_core.errors import WorkflowError
from astraflow_wire.host.disk import is_full
from astraflow_wire.host.reaped_processes import ReapedProcesses
from astraflow_wire.host.sockets import socket_folder

log = logging.getLogger(__name__)

Task = Mapping[str, Any]
"""The fields of :class:`astraflow_contrib_agent.zygote.AgentTask`."""

KEPT_BYTES = 1 << 16
KEPT_OUTPUTS = 16
START_DEADLINE_S = 120.0
PIPES_CLOSE_S = 1.0
MOST_RESULT_BYTES = 1 << 20
_MOST_NAME = 120


class Agent(Protocol):
    """Plays episodes, many at once."""

    async def play(self, task: Task) -> Any:
        """What the agent returns for ``task``. :class:`WorkflowError` if it failed; if the caller is cancelled, no
        process of the episode is left."""


class FunctionAgent:
    """``module:function`` in a process for each episode, forked from one that has imported it."""

    def __init__(self, target: str, folder: Path | None, python: str | None) -> None:
        self._target, self._folder = target, folder
        self._python = python or sys.executable
        # The agent finds what this process finds, unless it has another interpreter.
        found = os.pathsep.join(part for part in sys.path if part)
        self._path = {"PYTHONPATH": found} if python is None else {}
        self._process: subprocess.Popen[bytes] | None = None
        self._sockets = socket_folder()
        self._address = str(self._sockets.path / "agent")
        self._processes = ReapedProcesses()

    async def play(self, task: Task) -> Any:
        """One episode."""
        await self._started()
        async with self._processes.under(task["api_key"]) as started:
            line = await self._played(task, started)
        if not line:
            raise WorkflowError(
                f"the process of agent {self._target} ended without a result; its output is in the log of this RaaS"
            )
        result = json.loads(line)
        if "error" in result:
            raise WorkflowError(f"agent {self._target} failed:\n{result['error'].rstrip()}")
        return result["returned"]

    async def _played(self, task: Task, started: Callable[[int], None]) -> bytes:
        """The line with the result; empty if the process ended without one."""
        try:
            reader, writer = await asyncio.open_unix_connection(
                self._address, limit=MOST_RESULT_BYTES
            )
        except OSError as error:
            raise WorkflowError(
                f"the process of agent {self._target} has exited: {error}"
            ) from error
        try:
            writer.write(msgspec.json.encode(task) + b"\n")
            started(json.loads(await reader.readline() or b'{"pid": 0}')["pid"])
            line = await reader.readline()
            with contextlib.suppress(TimeoutError):  # its output is flushed when it exits
                await asyncio.wait_for(reader.read(1), PIPES_CLOSE_S)
        except ValueError as error:
            raise WorkflowError(
                f"agent {self._target} returned more than {MOST_RESULT_BYTES} bytes"
            ) from error
        finally:
            writer.close()
        return line

    async def _started(self) -> None:
        """Return when the process that has imported the module listens."""
        if self._process is None or self._process.poll() is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._address)
            self._process = self._start()
        process, clock = self._process, asyncio.get_running_loop().time
        until = clock() + START_DEADLINE_S
        while not os.path.exists(self._address):
            if process.poll() is not None:
                raise WorkflowError(
                    f"agent {self._target} cannot be imported from {self._folder or os.getcwd()}: "
                    f"{self._reason(process.returncode)}"
                )
            if clock() > until:
                process.kill()
                raise WorkflowError(
                    f"agent {self._target}: its module is not imported after {START_DEADLINE_S:g} s"
                )
            await asyncio.sleep(0.01)

    def _reason(self, code: int) -> str:
        """Why the process that imports the module has ended."""
        try:
            return Path(f"{self._address}{zygote.FAILED}").read_text("utf-8")
        except FileNotFoundError:
            return f"its module ended the process with {_ending(code)}"

    def _start(self) -> subprocess.Popen[bytes]:
        Path(f"{self._address}{zygote.FAILED}").unlink(missing_ok=True)
        return subprocess.Popen(
            [self._python, zygote.__file__, self._address, self._target],
            stdin=subprocess.DEVNULL,
            cwd=self._folder,
            env=environment(self._path),
        )


class CommandAgent:
    """A program for each episode: the task is a line of JSON on its standard input, and the last line of its standard
    output may be ``{"reward": …}`` or ``{"rewards": {policy: …}}``. The end of what it wrote is kept in ``outputs``."""

    def __init__(self, command: list[str], folder: Path | None, outputs: Path) -> None:
        self._command, self._folder, self._outputs = command, folder, outputs
        self.name = _in_one_line(command)
        self._results = ResultReader(self.name)
        self._processes = ReapedProcesses()
        self._number = 0
        self._had_no_room = False

    async def play(self, task: Task) -> Any:
        """One episode."""
        pipes: list[asyncio.Task[bytes]] = []
        said = errors = b""
        try:
            async with self._processes.under(task["api_key"]) as started:
                process = await self._start(task)
                started(process.pid)
                assert process.stdin and process.stdout and process.stderr
                pipes += (
                    asyncio.create_task(_tail(pipe)) for pipe in (process.stdout, process.stderr)
                )
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    process.stdin.write(msgspec.json.encode(task) + b"\n")
                    await process.stdin.drain()
                    process.stdin.close()
                code = await process.wait()
        finally:
            if pipes:
                # A descendant that left the process group may hold them.
                await asyncio.wait(pipes, timeout=PIPES_CLOSE_S)
                for pipe in pipes:
                    pipe.cancel()
                said, errors = await asyncio.gather(*pipes)
                self._keep(said, errors)
        if code != 0:
            last = errors.decode("utf-8", "replace").rstrip()[-2000:]
            raise WorkflowError(f"agent {self.name} ended with {_ending(code)}\n{last}".rstrip())
        return self._results.of_output(said)

    async def _start(self, task: Task) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd=self._folder,
                env=environment(zygote.variables(task["base_url"], task["api_key"])),
                start_new_session=True,
            )
        except OSError as error:
            raise WorkflowError(f"agent {self.name} cannot be started: {error}") from error

    def _keep(self, said: bytes, errors: bytes) -> None:
        """The newest outputs, in turn. No episode waits for disk space to keep them."""
        path = self._outputs / f"{self._number % KEPT_OUTPUTS}.txt"
        self._number += 1
        try:
            self._outputs.mkdir(parents=True, exist_ok=True)
            path.write_bytes(said + (b"\n--- standard error\n" + errors if errors else b""))
        except OSError as error:
            if not is_full(error, self._outputs):
                raise
            if not self._had_no_room:
                log.warning("no disk space to keep what agent %s prints: %s", self.name, error)
            self._had_no_room = True
        else:
            self._had_no_room = False


class ServiceAgent:
    """A service that runs on its own: the task is posted as JSON, and its reply, ``{"reward": …}``,
    ``{"rewards": {policy: …}}`` or ``{}``, ends the episode."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._results = ResultReader(url)

    async def play(self, task: Task) -> Any:
        """One episode."""
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as client,
                client.post(self._url, json=dict(task)) as response,
            ):
                body = await self._body(response)
                if response.status >= 300:
                    said = body.decode("utf-8", "replace")[:500]
                    raise WorkflowError(f"agent {self._url} answered {response.status}: {said}")
        except (aiohttp.ClientError, OSError) as error:
            raise WorkflowError(
                f"agent {self._url} cannot be reached: {_reason(error)}; start the service, or correct [workflow] url"
            ) from error
        return self._results.of_reply(body)

    async def _body(self, response: aiohttp.ClientResponse) -> bytes:
        body = bytearray()
        async for piece in response.content.iter_any():
            body += piece
            if len(body) > MOST_RESULT_BYTES:
                raise WorkflowError(
                    f"agent {self._url} replied more than {MOST_RESULT_BYTES} bytes"
                )
        return bytes(body)


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """That of this process without what belongs to AstraFlow, such as the run's token; ``more`` on top."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ASTRAFLOW_")}
    return {**kept, **more}


async def _tail(stream: asyncio.StreamReader) -> bytes:
    """The last ``KEPT_BYTES`` of what comes, however much it is."""
    kept: collections.deque[bytes] = collections.deque()
    size = 0
    try:
        while piece := await stream.read(1 << 16):
            kept.append(piece)
            size += len(piece)
            while size - len(kept[0]) >= KEPT_BYTES:
                size -= len(kept.popleft())
    except asyncio.CancelledError:
        pass
    return b"".join(kept)[-KEPT_BYTES:]


def _in_one_line(command: list[str]) -> str:
    """The command line, cut where it is long."""
    line = " ".join(shlex.join(command).split())
    return line if len(line) <= _MOST_NAME else f"{line[:_MOST_NAME]}…"


def _ending(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


def _reason(error: Exception) -> str:
    """The text of the error: why there is no answer."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, OSError) and (cause.errno or 0) > 0:
        return os.strerror(cause.errno or 0)
    if isinstance(cause, OSError) and cause.strerror:  # of a name that cannot be resolved
        return str(cause.strerror)
    return str(cause) or type(cause).__name__
