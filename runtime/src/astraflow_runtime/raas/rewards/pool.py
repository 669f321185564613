"""A pool of reward workers: deadlines, replacement of workers that hang or die, recycling."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from astraflow_core.errors import RunFailed, WireError, WorkflowError
from astraflow_core.types import RewardReport, TrajectoryView
from astraflow_engine_host.spec import ChildSpec, write_spec
from astraflow_runtime.raas.child import Child
from astraflow_runtime.raas.rewards.scoring import NO_ENGINES, Engines
from astraflow_runtime.raas.rewards.worker import WorkerVerdict, pack
from astraflow_wire.decoding import from_msgpack
from astraflow_wire.host.disk import room_for
from astraflow_wire.host.worker_channel import WorkerChannel, WorkerEnded, WorkerGone

log = logging.getLogger("astraflow.raas")
MODULE = "astraflow_runtime.raas.rewards.worker"
RECYCLE_AFTER = 500
"""Calls after which a worker is replaced, so that memory leaks of a reward stay bounded."""


class _Worker:
    def __init__(self, child: Child, channel: WorkerChannel) -> None:
        self.child, self.calls = child, 0
        self._channel = channel

    @classmethod
    async def start(cls, spec: Path, token: str, deadline_s: float) -> _Worker:
        ours, theirs = socket.socketpair()
        try:
            child = await Child.start(MODULE, spec, token, fds=(theirs.fileno(),))
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        worker = cls(child, await WorkerChannel.over(ours))
        try:
            async with asyncio.timeout(deadline_s):
                built = await worker.verdict(worker._channel.receive())
        except (TimeoutError, WorkerGone) as error:
            await worker.end()
            raise RunFailed(
                f"a reward worker did not start within {deadline_s:.0f} s; see the log"
            ) from error
        if built.error:
            await worker.end()
            raise RunFailed(f"the reward could not be built: {built.error}")
        return worker

    async def call(self, body: bytes) -> WorkerVerdict:
        self.calls += 1
        return await self.verdict(self._channel.call(body))

    async def verdict(self, answer: Awaitable[bytes]) -> WorkerVerdict:
        try:
            return from_msgpack(await answer, WorkerVerdict, "sent a malformed result")
        except WorkerEnded:
            raise WorkerGone(await self.child.ended()) from None
        except WireError as error:
            raise WorkerGone(str(error)) from error

    async def end(self) -> None:
        self.child.kill()
        await self._channel.close()
        await self.child.ended()


class RewardPool:
    """Implements ``Scorer`` with ``size`` worker processes, each busy with one call at a time."""

    def __init__(
        self,
        name: str,
        spec: ChildSpec,
        spec_file: Path,
        token: str,
        size: int,
        deadline_s: float,
        start_s: float,
    ) -> None:
        self.name = name
        self.killed = 0
        self._spec, self._spec_file, self._token = spec, spec_file, token
        self._size, self._deadline_s, self._start_s = size, deadline_s, start_s
        self._idle: asyncio.Queue[_Worker | None] = asyncio.Queue()
        self._workers: set[_Worker] = set()

    async def start(self) -> None:
        """Start all workers; raises :class:`RunFailed` if the reward cannot be built."""
        await room_for(lambda: write_spec(self._spec_file, self._spec), self._spec_file)
        for worker in await asyncio.gather(*(self._new_worker() for _ in range(self._size))):
            self._idle.put_nowait(worker)

    async def _new_worker(self) -> _Worker:
        worker = await _Worker.start(self._spec_file, self._token, self._start_s)
        self._workers.add(worker)
        return worker

    async def score(self, view: TrajectoryView, engines: Engines = NO_ENGINES) -> Any:
        """What the reward returned. The deadline counts from the moment a worker is free; a worker that
        hangs or dies is replaced and its call fails with :class:`WorkflowError`."""
        body = pack(view)
        # None stands for a worker that is gone.
        worker = await self._idle.get()
        try:
            if worker is not None and worker.calls >= RECYCLE_AFTER:
                await self._retire(worker)
                worker = None
            worker = worker or await self._new_worker()
            async with asyncio.timeout(self._deadline_s):
                verdict = await worker.call(body)
        except TimeoutError:
            await self._drop(worker)
            worker = None
            raise WorkflowError(
                f"returned no result within {self._deadline_s:g} s ([raas] reward_deadline_s); its worker was killed"
            ) from None
        except WorkerGone as error:
            await self._drop(worker)
            worker = None
            raise WorkflowError(f"exited its worker process, which {error}") from None
        except asyncio.CancelledError:
            await self._drop(worker)
            worker = None
            raise
        finally:
            self._idle.put_nowait(worker)
        if verdict.error:
            raise WorkflowError(verdict.error)
        if verdict.metrics and verdict.value is not None:
            return RewardReport(verdict.value, verdict.metrics)
        return verdict.value

    async def _drop(self, worker: _Worker | None) -> None:
        self.killed += 1
        log.info("a worker of reward %r is replaced", self.name)
        await self._retire(worker)

    async def _retire(self, worker: _Worker | None) -> None:
        if worker is not None:
            self._workers.discard(worker)
            await worker.end()

    async def close(self) -> None:
        """Kill all workers."""
        workers, self._workers = self._workers, set()
        await asyncio.gather(*(worker.end() for worker in workers))
