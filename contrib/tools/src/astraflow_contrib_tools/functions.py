"""Python functions as tools, run in worker processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from astraflow_contrib_tools.config import ToolsConfig
from astraflow_contrib_tools.function_worker import FunctionAnswer, FunctionOffer, WorkerCall
from astraflow_contrib_tools.results import ToolError, in_time
from astraflow_contrib_tools.toolbox import Tool
from astraflow_core.errors import EnvironmentFailed, PreflightError
from astraflow_wire.host.worker_channel import WorkerChannel, WorkerGone

WORKER = "astraflow_contrib_tools.function_worker"
START_DEADLINE_S = 60.0
DIES_S = 5.0


class FunctionTools:
    """The functions ``module:function`` of the configuration. A function may block, hang or crash: each call runs in a
    worker process, which is killed when its call is cancelled or late."""

    def __init__(self, config: ToolsConfig) -> None:
        self._functions, self._config = config.functions, config
        command = [sys.executable, "-m", WORKER, *config.functions]
        self._command, self._variables = command, _environment(config.folder)
        self._free = [_Worker(command, self._variables, config) for _ in range(config.workers)]
        self._room: asyncio.Semaphore | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.tools = [self._tool(offer) for offer in self._describe()]

    def _describe(self) -> list[FunctionOffer]:
        """What the functions are, found by a process of their own, so that none of their modules is imported here."""
        if not self._functions:
            return []
        try:
            described = subprocess.run(
                [*self._command, "--describe"],
                env=self._variables,
                capture_output=True,
                timeout=START_DEADLINE_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise PreflightError(
                f"workflow 'tools': the modules of {', '.join(self._functions)} are not imported after {START_DEADLINE_S:g} s"
            ) from None
        if described.returncode:
            said = described.stderr.decode("utf-8", "replace").strip()
            raise PreflightError(
                f"workflow 'tools': {said or f'the process of functions ended with {described.returncode}'}"
            )
        return msgspec.json.decode(described.stdout, type=list[FunctionOffer])

    def _tool(self, offer: FunctionOffer) -> Tool:
        origin = f"function {offer.function!r}"
        call = partial(self._call, offer.name)
        return Tool(offer.name, offer.description, offer.parameters, origin, call)

    async def _call(self, name: str, arguments: Mapping[str, Any]) -> str:
        async with self._slots():
            worker = self._free.pop()
            try:
                answer = await worker.call(WorkerCall(name, dict(arguments)))
            finally:
                self._free.append(worker)
        if answer.error:
            raise ToolError(answer.text)
        return answer.text

    def _slots(self) -> asyncio.Semaphore:
        """A semaphore that allows as many calls at once as there are workers."""
        loop = asyncio.get_running_loop()
        if self._room is None or self._loop is not loop:
            self._room, self._loop = asyncio.Semaphore(self._config.workers), loop
        return self._room


class _Worker:
    """A process that is started when it is needed."""

    def __init__(self, command: list[str], variables: dict[str, str], config: ToolsConfig) -> None:
        self._command, self._variables, self._config = command, variables, config
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: WorkerChannel | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def call(self, call: WorkerCall) -> FunctionAnswer:
        """What the function gave. If there is no answer, the process is killed."""
        try:
            channel = await self._started()
            answering = channel.call(msgspec.msgpack.encode(call))
            answer = await in_time(answering, self._config.tool_deadline_s)
            return msgspec.msgpack.decode(answer, type=FunctionAnswer)
        except WorkerGone as error:
            ended = await self._kill(DIES_S)
            raise EnvironmentFailed(
                "tool_worker", f"the process of function {call.name!r} {error}, with {ended}"
            ) from error
        except TimeoutError as error:
            await self._kill()
            raise EnvironmentFailed(
                "tool_worker",
                f"a process of functions has not started within {START_DEADLINE_S:g} s",
            ) from error
        except BaseException:
            await self._kill()
            raise

    async def _started(self) -> WorkerChannel:
        loop = asyncio.get_running_loop()
        if self._channel is not None and self._loop is loop:
            return self._channel
        await self._kill()
        ours, theirs = socket.socketpair()
        with theirs:
            options = (theirs.fileno(), self._config.max_result, os.getpid())
            self._process = subprocess.Popen(
                [*self._command, "--serve", *map(str, options)],
                stdin=subprocess.DEVNULL,
                env=self._variables,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        channel = await WorkerChannel.over(ours)
        async with asyncio.timeout(START_DEADLINE_S):
            await channel.receive()
        self._channel, self._loop = channel, loop
        return channel

    async def _kill(self, grace_s: float = 0.0) -> str:
        """End the process, with all that it has started; how it ended. It has ``grace_s`` to exit on its own."""
        process, channel = self._process, self._channel
        self._process = self._channel = None
        if channel is not None and self._loop is asyncio.get_running_loop():
            await channel.close()
        if process is None:
            return "no process"
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(process.wait, grace_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        code = await asyncio.to_thread(process.wait)
        return f"signal {-code}" if code < 0 else f"exit code {code}"


def _environment(folder: Path | None) -> dict[str, str]:
    """That of this process without what belongs to AstraFlow, such as the run's token."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ASTRAFLOW_")}
    path = [str(folder.absolute())] if folder is not None else []
    return {**kept, "PYTHONPATH": os.pathsep.join([*path, *filter(None, sys.path)])}
