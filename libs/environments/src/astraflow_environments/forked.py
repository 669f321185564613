"""The fork server and its workers, as the process sees them that asks for them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Mapping
from typing import Any

import msgspec

from astraflow_core.config.environments import environment_of
from astraflow_core.errors import EnvironmentFailed, UserError, WireError
from astraflow_core.types import Action, ComponentContext, Observation, Prompt
from astraflow_environments.fork_server import SEAT
from astraflow_environments.keys import EnvironmentKeys
from astraflow_environments.messages import (
    Answer,
    Call,
    EndedWorker,
    EnvironmentSpec,
    ForkedWorker,
    ResetCall,
    ServerFailed,
    ServerReady,
    ServerSays,
    StepCall,
    WorkerBuilt,
    WorkerFailed,
    WorkerObserved,
    plain,
)
from astraflow_wire.decoding import from_msgpack
from astraflow_wire.host.worker_channel import WorkerChannel, WorkerEnded, WorkerGone, say

MODULE = "astraflow_environments.fork_server"
_STATUS_S = 5.0
"""How long the news of a worker's end may be on its way."""
_END_S = 3.0
"""How long it may take to end its workers."""


class RunningForkServer:
    """A fork server and its workers; all end with this object or its process."""

    def __init__(
        self, process: subprocess.Popen[bytes], requests: socket.socket, reports: WorkerChannel
    ) -> None:
        self._process, self._requests, self._reports = process, requests, reports
        self._forked: asyncio.Queue[int] = asyncio.Queue()
        self._ended: dict[int, asyncio.Future[int]] = {}
        self._forking = asyncio.Lock()
        self._unclaimed = 0
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(
        cls,
        table: Mapping[str, Any],
        context: ComponentContext,
        memory_mb: int,
        python: str | None,
        deadline_s: float,
    ) -> RunningForkServer:
        """Start it and wait until it has imported the environment."""
        (requests, asked), (reports, said) = socket.socketpair(), socket.socketpair()
        with asked, said:
            command = [python or sys.executable, "-m", MODULE, str(os.getpid())]
            try:
                process = subprocess.Popen(
                    [*command, str(asked.fileno()), str(said.fileno())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(asked.fileno(), said.fileno()),
                    start_new_session=True,
                )
            except OSError as error:
                requests.close()
                reports.close()
                raise EnvironmentFailed("start", _not_started(command[0], error)) from error
        path = [] if python else [part or os.getcwd() for part in sys.path]
        spec = EnvironmentSpec(
            table=dict(table), context=plain(context), path=path, memory_mb=memory_mb
        )
        channel = await WorkerChannel.over(reports)
        try:
            say(requests, msgspec.msgpack.encode(spec))
            async with asyncio.timeout(deadline_s):
                ready = _decoded(await channel.receive())
            if isinstance(ready, ServerFailed):
                raise start_failure(ready.reason, ready.fatal)
            if not isinstance(ready, ServerReady):
                raise EnvironmentFailed("start", f"its fork server sent {ready!r:.80}")
        except (TimeoutError, WorkerGone, WireError, OSError) as error:
            _end(process, requests, 0.0)
            await channel.close()
            reason = (
                str(error) or f"took longer than {deadline_s:g} s ([workflow] start_deadline_s)"
            )
            raise EnvironmentFailed("start", f"its process did not start: {reason}") from error
        except BaseException:
            _end(process, requests, 0.0)
            await channel.close()
            raise
        return cls(process, requests, channel)

    @property
    def pid(self) -> int:
        """The pid of the worker."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return self._process.poll() is None and not self._listening.done()

    async def fork(self, seat: int, deadline_s: float) -> EnvironmentWorker:
        """A new worker that has built its environment; :class:`EnvironmentFailed` or :class:`UserError` if none has."""
        worker: EnvironmentWorker | None = None
        try:
            async with asyncio.timeout(deadline_s):
                pid, ours = await self.process(seat)
                worker = EnvironmentWorker(pid, await WorkerChannel.over(ours), self)
                built = await worker.next_answer()
        except (TimeoutError, OSError) as error:
            if worker is None:
                self.close()  # it has no caller
            else:
                await worker.end()
            reason = (
                str(error) or f"took longer than {deadline_s:g} s ([workflow] start_deadline_s)"
            )
            raise EnvironmentFailed("start", f"could not be built: {reason}") from error
        if isinstance(built, WorkerBuilt):
            worker.roles = built.roles
            return worker
        await worker.end()
        if isinstance(built, WorkerFailed):
            raise start_failure(f"could not be built: {built.reason}", built.fatal)
        raise EnvironmentFailed("start", "returned an observation before one was requested")

    async def process(self, seat: int) -> tuple[int, socket.socket]:
        """A new worker's process, and our end of the connection to it."""
        ours, theirs = socket.socketpair()
        try:
            async with self._forking:
                with theirs:
                    socket.send_fds(self._requests, [SEAT.pack(seat)], [theirs.fileno()])
                try:
                    return await self._forked.get(), ours
                except asyncio.CancelledError:
                    self._unclaimed += 1
                    raise
        except BaseException:
            ours.close()
            theirs.close()
            raise

    async def status(self, pid: int) -> str:
        """How a worker ended, in words."""
        future = self._ended.setdefault(pid, asyncio.get_running_loop().create_future())
        try:
            code = os.waitstatus_to_exitcode(
                await asyncio.wait_for(asyncio.shield(future), _STATUS_S)
            )
        except TimeoutError:
            return "has exited"
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def has_ended(self, pid: int) -> bool:
        """Whether its number may be that of another process by now."""
        return pid in self._ended and self._ended[pid].done()

    def close(self) -> None:
        """End it and its workers, and what they have started."""
        self._listening.cancel()
        _end(self._process, self._requests)

    def __del__(self) -> None:
        _end(self._process, self._requests)

    async def _listen(self) -> None:
        with contextlib.suppress(WorkerGone, WireError):
            while True:
                message = _decoded(await self._reports.receive())
                if isinstance(message, ForkedWorker) and self._unclaimed:
                    self._unclaimed -= 1  # its caller was cancelled
                    kill(message.pid)
                elif isinstance(message, ForkedWorker):
                    self._forked.put_nowait(message.pid)
                elif isinstance(message, EndedWorker):
                    loop = asyncio.get_running_loop()
                    future = self._ended.setdefault(message.pid, loop.create_future())
                    if not future.done():
                        future.set_result(message.status)


class EnvironmentWorker:
    """A process with one environment."""

    bounds_itself = worn = False

    def __init__(self, pid: int, channel: WorkerChannel, server: RunningForkServer) -> None:
        self.pid, self.roles = pid, tuple[str, ...]()
        self._channel, self._server = channel, server

    async def reset(self, task: Prompt, seed: int) -> Observation:
        """Begin an episode."""
        return await self._call(ResetCall(task, seed))

    async def step(self, action: Action) -> Observation:
        """One step."""
        return await self._call(StepCall(action))

    async def next_answer(self) -> Answer:
        """The next answer of the worker."""
        return await self._answer(self._channel.receive())

    async def end(self) -> None:
        """Kill it and its descendants."""
        if not self._server.has_ended(self.pid):
            kill(self.pid)
        await self._channel.close()

    async def _call(self, call: Call) -> Observation:
        answer = await self._answer(self._channel.call(msgspec.msgpack.encode(call)))
        if isinstance(answer, WorkerObserved):
            return answer.observation
        if isinstance(answer, WorkerFailed):
            if answer.fatal:
                raise UserError(answer.reason)
            raise EnvironmentFailed(answer.kind, answer.reason)
        raise EnvironmentFailed("crashed", "was rebuilt in the middle of an episode")

    async def _answer(self, answer: Awaitable[bytes]) -> Answer:
        try:
            return from_msgpack(await answer, Answer, "sent a malformed message")  # type: ignore[arg-type]
        except WorkerEnded:
            status = await self._server.status(self.pid)
            raise EnvironmentFailed("crashed", f"its worker process {status}") from None
        except (WorkerGone, WireError) as error:
            raise EnvironmentFailed("crashed", f"its worker process {error}") from error


def late(first: bool, keys: EnvironmentKeys) -> EnvironmentFailed:
    """That a call has no answer within its deadline."""
    key = "reset_deadline_s" if first else "step_deadline_s"
    reason = f"gave no answer within {getattr(keys, key):g} s ([workflow] {key})"
    return EnvironmentFailed("timeout", reason)


def kill(leader: int) -> None:
    """Kill a worker and its descendants."""
    for signalled in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            signalled(leader, signal.SIGKILL)


def _decoded(body: bytes) -> ServerSays:
    return from_msgpack(body, ServerSays, "sent a malformed message")  # type: ignore[arg-type]


def _not_started(python: str, error: OSError) -> str:
    name = environment_of(python)
    if name is None or os.path.exists(python):
        return f"{python} cannot be started: {error}"
    return (
        f"has no interpreter {python}: make it with `astraflow env create {name} --plugin PLUGIN`, where PLUGIN is that of the "
        "environment"
    )


def start_failure(reason: str, fatal: bool) -> EnvironmentFailed | UserError:
    """That an environment cannot be built; ``fatal``: a mistake of the user."""
    return UserError(reason) if fatal else EnvironmentFailed("start", reason)


def _end(
    process: subprocess.Popen[bytes], requests: socket.socket, patience_s: float = _END_S
) -> None:
    """Let it end its workers and remove their files, or kill it."""
    requests.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(patience_s)
    if process.poll() is None:
        process.kill()
        process.wait()
