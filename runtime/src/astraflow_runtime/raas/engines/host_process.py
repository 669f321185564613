"""Starts an engine host, waits until its engine is ready, and notices when it ends or hangs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import zmq
import zmq.asyncio

from astraflow_core.config.models import EngineTable, RunConfig
from astraflow_core.errors import (
    AstraFlowError,
    DeadlineExceeded,
    PreflightError,
    RunFailed,
    UserError,
    WireError,
)
from astraflow_core.types import LogprobSemantics
from astraflow_engine_host import protocol
from astraflow_engine_host.protocol import HostGone
from astraflow_engine_host.spec import ChildSpec, part_name, write_spec
from astraflow_runtime.raas.child import Child
from astraflow_runtime.raas.engines.host_client import HostClient
from astraflow_runtime.raas.engines.host_watchdog import HostWatchdog, StoppedTime
from astraflow_wire.host.disk import room_for
from astraflow_wire.messages import Wait

log = logging.getLogger("astraflow.raas")

MODULE = "astraflow_engine_host.main"
CLOSE_S = 4.0
LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class HostSettings:
    """How to start replica ``replica`` of the engine of ``policy``, and the deadlines of its host."""

    config: RunConfig
    directory: Path
    raas: str
    policy: str
    token: str = field(repr=False)
    sockets: Path
    replica: int = 0

    @property
    def engine(self) -> EngineTable:
        """The table of the engine."""
        return self.config.served[self.policy].engine

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables of the host that select its devices."""
        devices = self.engine.devices
        return {"CUDA_VISIBLE_DEVICES": devices[self.replica]} if devices else {}

    @property
    def part(self) -> str:
        """The policy and the replica, as used in file names."""
        return part_name(self.policy, self.replica)

    @property
    def name(self) -> str:
        """The host, in errors and logs."""
        name = f"the engine host of policy {self.policy!r} in {self.raas}"
        return f"{name} (replica {self.replica})" if self.engine.replicas > 1 else name


class EngineHostProcess:
    """A running host. ``client`` is connected to it until :meth:`wait_end` returns.
    ``silence_changed`` is called when it stops responding and when it responds again. A hanging
    host is given up after ``deadline_s``; a stopped one, which is not at fault, after
    ``give_up_after_s``.
    """

    def __init__(
        self,
        settings: HostSettings,
        child: Child,
        socket: zmq.asyncio.Socket,
        peer: bytes,
        ready: protocol.Ready,
    ) -> None:
        self.stopped_s = StoppedTime(child.pid)
        self.client = HostClient(settings.name, socket, peer, self.stopped_s)
        self.silence: HostWatchdog | None = None
        self.silence_changed: Callable[[], None] = lambda: None
        self.context_length = ready.context_length
        self.direct, self.workers = ready.direct, ready.workers
        self.semantics = LogprobSemantics(ready.temperature, ready.truncation)
        self.start_s = ready.seconds
        self.cpu_s = 0.0
        self.pid = child.pid
        self._settings = settings
        self._child = child
        self._closing = False
        self._socket = socket
        self._silent_s = settings.config.run.deadline_s
        self._give_up_after_s = settings.config.run.give_up_after_s

    @classmethod
    async def start(cls, settings: HostSettings, attempt: int) -> EngineHostProcess:
        """Start a host and its engine within the start deadline.

        Raises the error of the engine (:class:`UserError` for errors of the user, else
        :class:`RunFailed`), or :class:`HostGone` with the exit status if the process exited without
        one.
        """
        address = f"ipc://{settings.sockets / f'{settings.part}.{attempt}'}"
        socket = zmq.asyncio.Context.instance().socket(zmq.ROUTER)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind(address)
        child = None
        try:
            child = await cls._spawn(settings, address)
            peer, ready = await cls._greeting(settings, child, socket)
            return cls(settings, child, socket, peer, ready)
        except BaseException:
            if child is not None:
                child.kill()
                await asyncio.shield(child.ended())
            socket.close()
            raise

    @staticmethod
    async def _spawn(settings: HostSettings, address: str) -> Child:
        config, policy = settings.config, settings.policy
        path = settings.directory / "state" / settings.raas / f"engine-{settings.part}.json"
        spec = ChildSpec(
            config=config.model_dump_json(),
            directory=str(settings.directory),
            raas=settings.raas,
            parent=os.getpid(),
            policy=policy,
            replica=settings.replica,
            address=address,
        )
        await room_for(lambda: write_spec(path, spec), path)
        python = settings.engine.python
        try:
            return await Child.start(
                MODULE, path, settings.token, python, environment=settings.environment
            )
        except OSError as error:
            raise PreflightError(
                f"cannot start the interpreter {python!r} that the engine of {policy!r} sets as python: "
                f"{error.strerror}; set it to a Python interpreter that has astraflow-core and the engine's plugin"
            ) from error

    @staticmethod
    async def _greeting(
        settings: HostSettings, child: Child, socket: zmq.asyncio.Socket
    ) -> tuple[bytes, protocol.Ready]:
        deadline_s = settings.config.run.start_deadline_s
        word = asyncio.ensure_future(socket.recv_multipart())
        end = asyncio.ensure_future(child.ended())
        try:
            await asyncio.wait({word, end}, timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED)
            if not word.done() and end.done():
                # Its last message may still be in transit.
                await asyncio.wait({word}, timeout=0.5)
                if not word.done():
                    raise HostGone(f"{end.result()}, before its engine was ready")
            if not word.done():
                raise DeadlineExceeded(settings.name, "the start of its engine", deadline_s)
            peer, header, *_ = word.result()
        finally:
            word.cancel()
            end.cancel()
        try:
            message = protocol.decode_from_host(header)
        except WireError as malformed:
            raise RunFailed(
                f"{settings.name} sent an invalid ready message: {malformed}; give the interpreter "
                f"{settings.engine.python!r} the same astraflow-core as the run's"
            ) from malformed
        if isinstance(message, protocol.StartFailed):
            error = protocol.as_exception(message.failure)
            text = f"the engine of policy {settings.policy!r} did not start: {error}"
            raise (UserError(text) if isinstance(error, UserError) else RunFailed(text)) from error
        assert isinstance(message, protocol.Ready)
        return peer, message

    async def wait_end(self) -> str:
        """Handle messages until the process exits or hangs; returns why it is gone. Pending
        requests have failed.
        """
        receiving = asyncio.ensure_future(self._receive())
        beating = asyncio.ensure_future(self._beat())
        ended = asyncio.ensure_future(self._child.ended())
        tasks = {receiving, beating, ended}
        reason = "was closed"
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if self.client.lost is not None:
                reason = self.client.lost
            elif ended.done():
                reason = ended.result()
            elif beating.done():
                reason = beating.result()
            else:
                reason = receiving.result()
        finally:
            self._child.kill()
            self.client.lose(reason)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._socket.close()
        return reason

    async def _receive(self) -> str:
        while True:
            _, header, *buffers = await self._socket.recv_multipart()
            try:
                self.client.take(protocol.decode_from_host(header), buffers)
            except WireError as error:
                return f"is not valid: {error}"

    async def _beat(self) -> str:
        pause = min(2.0, self._silent_s / 4)
        while True:
            try:
                self.cpu_s = await self._ping()
            except DeadlineExceeded as error:
                return f"did not respond for {error.seconds:.0f} s"
            await asyncio.sleep(pause)

    async def _ping(self) -> float:
        """A heartbeat: the host's CPU seconds. Logs a warning while there is no reply."""
        silence = HostWatchdog(self.pid, self.stopped_s)
        ping = asyncio.ensure_future(self.client.ping(self._silent_s))
        try:
            while not (await asyncio.wait({ping}, timeout=LOOK_S))[0]:
                notable = silence.is_notable(self._silent_s) and not self._closing
                if notable and self.silence is None:
                    self.silence = silence
                    log.warning("%s has not responded for %s", self._settings.name, silence)
                    self.silence_changed()
                if silence.seconds >= self._give_up_after_s:
                    raise DeadlineExceeded(self._settings.name, "ping", silence.seconds)
            values = ping.result()
        finally:
            ping.cancel()
            before, self.silence = self.silence, None
        if before is not None:
            log.warning("%s continues after %.0f s", self._settings.name, before.seconds)
            self.silence_changed()
        return values.get("cpu_s", self.cpu_s)

    def wait(self) -> Wait | None:
        """The wait to report while it is silent."""
        if self.silence is None:
            return None
        return self.silence.wait(
            f"policy {self._settings.part}", self._settings.name, self._give_up_after_s
        )

    async def close(self) -> None:
        """Close the engine and end the process within a few seconds."""
        self._closing = True
        began = time.monotonic()
        with contextlib.suppress(AstraFlowError, ValueError):
            await self.client.close(CLOSE_S / 2)
        await self._child.stop(max(1.0, CLOSE_S - (time.monotonic() - began)))

    def kill(self, reason: str) -> None:
        """Kill a host in an unknown state; :meth:`wait_end` then returns."""
        self.client.lose(reason)
        self._child.kill()
