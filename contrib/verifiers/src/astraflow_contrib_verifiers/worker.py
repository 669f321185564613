"""A process of the other interpreter, in which environments play."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import subprocess
import threading
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import msgspec

from astraflow_contrib_verifiers.config import VerifiersWorkflowConfig
from astraflow_contrib_verifiers.interpreter import command, variables
from astraflow_contrib_verifiers.prompts import WorkerFailure
from astraflow_core.errors import EnvironmentFailed
from astraflow_wire.host import reaper
from astraflow_wire.host.reaped_processes import ReapedProcesses
from astraflow_wire.host.sockets import socket_folder

WHO = "workflow 'verifiers'"
MOST_REPLY_BYTES = 64 << 20
START_DEADLINE_S = 60.0
LEAVE_S = 5.0
"""In which an episode that was cancelled has to be over; then its process is killed, which holds up others too."""


class RoleOutcome(msgspec.Struct, frozen=True):
    """What the environment says of a role. ``recorded``: token ids and log-probs of each turn; ``None`` where verifiers gets
    none, as by the chat completions of v1."""

    reward: float | None
    trained: bool
    metrics: dict[str, float | None]
    recorded: list[tuple[list[int], list[float]]] | None


class _Reply(msgspec.Struct):
    roles: dict[str, RoleOutcome] = {}
    failed: WorkerFailure | None = None


@dataclass
class _Process:
    """A running worker; ``kept`` ends it."""

    process: subprocess.Popen[bytes]
    kept: AsyncExitStack


class Worker:
    """Plays any number of episodes at once, in a process that is started when it is needed, and again if it has ended."""

    def __init__(self, keys: VerifiersWorkflowConfig) -> None:
        self._keys = keys
        self._sockets = socket_folder()
        self._processes = ReapedProcesses()
        self._starts = 0
        self._address = ""
        self._starting: asyncio.Task[_Process] | None = None
        self.playing = 0

    async def play(self, asked: Mapping[str, Any]) -> dict[str, RoleOutcome]:
        """What the environment says of each role. :class:`EnvironmentFailed` if the episode has failed there."""
        self.playing += 1
        try:
            running = await self._started()
            return await self._played(running, asked)
        finally:
            self.playing -= 1

    async def _played(self, running: _Process, asked: Mapping[str, Any]) -> dict[str, RoleOutcome]:
        try:
            reader, writer = await asyncio.open_unix_connection(
                self._address, limit=MOST_REPLY_BYTES
            )
        except OSError as error:
            raise EnvironmentFailed(
                "worker", f"the process that plays has ended: {error}"
            ) from error
        try:
            writer.write(msgspec.json.encode(asked) + b"\n")
            line = await reader.readline()
        except asyncio.CancelledError:
            await asyncio.shield(self._leave(running, reader, writer))
            raise
        except (ValueError, ConnectionError) as error:
            raise EnvironmentFailed("worker", f"its reply cannot be read: {error}") from error
        finally:
            writer.close()
        if not line:
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(running.process.wait, LEAVE_S)
            raise EnvironmentFailed(
                "worker",
                f"the process that plays ended ({running.process.returncode}); its output is in the log of this RaaS",
            )
        return _read(line)

    async def _leave(
        self, running: _Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Return when the episode is over in the worker."""
        try:
            writer.write_eof()  # the worker cancels the episode, and closes its end when it is over
            async with asyncio.timeout(LEAVE_S):
                while await reader.read(1 << 16):
                    pass
                return
        except OSError as error:
            if not isinstance(error, TimeoutError):
                return
            await running.kept.aclose()

    async def _started(self) -> _Process:
        loop, starting = asyncio.get_running_loop(), self._starting
        if starting is None or starting.get_loop() is not loop or _is_over(starting):
            starting = self._starting = asyncio.create_task(self._start())
        return await asyncio.shield(starting)

    async def _start(self) -> _Process:
        self._starts += 1
        self._address = str(self._sockets.path / f"{self._starts}")
        key = f"verifiers-{secrets.token_hex(12)}"
        kept = AsyncExitStack()
        started = await kept.enter_async_context(self._processes.under(key))
        try:
            process = subprocess.Popen(
                command(
                    self._keys,
                    WHO,
                    "serve",
                    self._address,
                    str(self._keys.worker_memory_mb or 0),
                ),
                env=variables(self._keys, {reaper.VARIABLE: key}),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            started(process.pid)
            # The caller checks whether the process is gone, which it is only after it has been waited for.
            threading.Thread(target=process.wait, name="verifiers-worker", daemon=True).start()
            await self._listens(process)
        except BaseException:
            await kept.aclose()
            raise
        return _Process(process, kept)

    async def _listens(self, process: subprocess.Popen[bytes]) -> None:
        clock = asyncio.get_running_loop().time
        until = clock() + START_DEADLINE_S
        while not os.path.exists(self._address):
            if process.poll() is not None:
                raise EnvironmentFailed(
                    "worker",
                    f"{self._keys.python} ended ({process.returncode}) before it played; its output is in the log of this "
                    "RaaS",
                )
            if clock() > until:
                raise EnvironmentFailed(
                    "worker", f"{self._keys.python} does not play after {START_DEADLINE_S:g} s"
                )
            await asyncio.sleep(0.02)


def _is_over(starting: asyncio.Task[_Process]) -> bool:
    """Whether the start failed, or the process has ended."""
    if not starting.done():
        return False
    if starting.cancelled() or starting.exception() is not None:
        return True
    return starting.result().process.poll() is not None


def _read(line: bytes) -> dict[str, RoleOutcome]:
    try:
        reply = msgspec.json.decode(line, type=_Reply)
    except msgspec.DecodeError as error:
        raise EnvironmentFailed(
            "reply",
            f"the environment returned something that is not the result of an episode: {error}",
        ) from error
    if reply.failed is not None:
        raise EnvironmentFailed(reply.failed.kind, reply.failed.reason)
    return reply.roles
