"""Worker processes that the instances of a deterministic environment share, as the process sees them that asks for them.

What is said to a worker in one turn of the event loop is one message, and its answers come in few. A worker that ends, has no
memory left or is at one call for long is killed; each of its episodes is then repeated in a process of its own, where it ends
as it would have ended alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

import msgspec

from astraflow_core.errors import EnvironmentFailed, UserError, WireError
from astraflow_core.types import Action, Observation, Prompt
from astraflow_environments.fork_server import SHARED
from astraflow_environments.forked import (
    EnvironmentWorker,
    RunningForkServer,
    kill,
    late,
    start_failure,
)
from astraflow_environments.keys import EnvironmentKeys
from astraflow_environments.messages import (
    Answer,
    SharedBuild,
    SharedCall,
    SharedClose,
    SharedReset,
    SharedStep,
    WorkerBuilt,
    WorkerObserved,
)
from astraflow_wire.decoding import from_msgpack
from astraflow_wire.host.worker_channel import MessageProtocol, WorkerGone

log = logging.getLogger("astraflow.environments")
STALL_S, RESET_STALL_S = 2.0, 10.0
"""How long a worker that episodes share may be at a step and at a reset of one of them: the others wait meanwhile."""
MOST_LOST = 3
"""Workers that may be lost, after which each episode gets a separate process: that environment cannot share workers."""


class SharedWorkerLost(Exception):
    """A worker that several share will not answer; the text says why."""


class SharedWorker(MessageProtocol):
    """A process with several instances, which answers calls in the order in which they come."""

    def __init__(self) -> None:
        super().__init__()
        self.pid = self.players = self.episodes = 0
        self.worn = False
        """Whether it gets no further episode."""
        self.lost = ""
        self.told_lost: Callable[[str], None] = lambda reason: None
        self.has_ended: Callable[[int], bool] = lambda pid: False
        self._calls: list[SharedCall] = []
        self._asked: deque[tuple[asyncio.Future[Answer], float]] = deque()
        self._since = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def ask(self, call: SharedCall, limit_s: float) -> asyncio.Future[Answer]:
        """Its answer; :class:`SharedWorkerLost` if it is at this call for longer than ``limit_s``."""
        answer: asyncio.Future[Answer] = self._loop.create_future()
        if self.lost:
            answer.set_exception(SharedWorkerLost(self.lost))
            return answer
        if not self._asked:
            self._since = self._loop.time()
            if self._watch is None:
                self._watch = self._loop.call_later(min(limit_s, STALL_S), self._look)
        self._asked.append((answer, limit_s))
        self.tell(call)
        return answer

    def tell(self, call: SharedCall) -> None:
        """What has no answer."""
        if not self._calls:
            self._loop.call_soon(self._flush)
        self._calls.append(call)

    def lose(self, reason: str) -> None:
        """Kill it; nothing waits for it any longer."""
        if self.lost:
            return
        self.lost, self.worn = reason, True
        if self.pid and not self.has_ended(self.pid):
            kill(self.pid)
        self._transport.close()
        if self._watch is not None:
            self._watch.cancel()
        asked, self._asked = self._asked, deque()
        for answer, _ in asked:
            if not answer.done():
                answer.set_exception(SharedWorkerLost(reason))
        self.told_lost(reason)

    async def end(self) -> None:
        """Kill it, with all that it has started."""
        self.told_lost = lambda reason: None
        self.lose("was ended")
        await self.close()

    def changed(self) -> None:
        """Called for answers, and when it has ended."""
        try:
            while (body := self.next_message()) is not None:
                answers = from_msgpack(body, list[Answer], "sent a malformed message")
                for one in answers:
                    answer, _ = self._asked.popleft()
                    if not answer.done():
                        answer.set_result(one)
                self._since = self._loop.time()
        except (WorkerGone, WireError, IndexError) as error:
            self.lose(str(error) or "sent an answer to nothing")
        if self.ended:
            self.lose("ended")

    def _flush(self) -> None:
        calls, self._calls = self._calls, []
        self.send(msgspec.msgpack.encode(calls))

    def _look(self) -> None:
        self._watch = None
        if not self._asked:
            return
        limit_s = self._asked[0][1]
        left = self._since + limit_s - self._loop.time()
        if left <= 0:
            self.lose(f"was at one call for {limit_s:g} s")
        else:
            self._watch = self._loop.call_later(min(left, STALL_S), self._look)


class SharedPlayer:
    """One instance in a worker that others share, for one episode after the other."""

    bounds_itself = True

    def __init__(
        self,
        seat: int,
        worker: SharedWorker,
        roles: tuple[str, ...],
        workers: SharedWorkers,
        keys: EnvironmentKeys,
    ) -> None:
        self.roles = roles
        self._seat, self._worker, self._workers, self._keys = seat, worker, workers, keys
        self._step_s = min(STALL_S, keys.step_deadline_s)
        self._own: EnvironmentWorker | None = None
        self._began: tuple[Prompt, int]
        self._actions: list[Action] = []
        self._seen: Observation | None = None
        worker.players += 1

    @property
    def worn(self) -> bool:
        """Whether it gets no further episode."""
        return self._own is not None or self._worker.worn or not self._workers.sharing

    async def reset(self, task: Prompt, seed: int) -> Observation:
        """Begin an episode."""
        self._began, self._actions, self._seen = (task, seed), [], None
        self._worker.episodes += 1
        if self._worker.episodes >= self._workers.most_episodes:
            self._worker.worn = True
        limit_s = min(RESET_STALL_S, self._keys.reset_deadline_s)
        asked = self._worker.ask(SharedReset(self._seat, task, seed), limit_s)
        seen = await self._answer(asked)
        if seen is None:
            own = await self._alone()
            return await self._bounded(True, own.reset(task, seed))
        return seen

    async def step(self, action: Action) -> Observation:
        """One step."""
        seen = None
        if self._own is None:
            asked = self._worker.ask(SharedStep(self._seat, action), self._step_s)
            seen = await self._answer(asked)
        if seen is None:
            own = await self._alone()
            return await self._bounded(False, own.step(action))
        self._actions.append(action)
        return seen

    async def end(self) -> None:
        """Close it."""
        if self._own is not None:
            await self._own.end()
        worker = self._worker
        worker.players -= 1
        if worker.worn and not worker.players:
            await worker.end()
        elif not worker.lost:
            worker.tell(SharedClose(self._seat))

    async def _answer(self, asked: Awaitable[Answer]) -> Observation | None:
        """None if the worker was lost."""
        try:
            answer = await asked
        except SharedWorkerLost:
            return None
        except BaseException:
            self._worker.worn = True  # what it does now is discarded
            raise
        if isinstance(answer, WorkerObserved):
            self._seen = answer.observation
            return self._seen
        self._worker.worn = True
        if isinstance(answer, WorkerBuilt):
            raise EnvironmentFailed("crashed", "was rebuilt in the middle of an episode")
        if answer.kind == "memory":  # whose, is seen where it is alone
            self._worker.lose("has no memory left")
            return None
        if answer.fatal:
            raise UserError(answer.reason)
        raise EnvironmentFailed(answer.kind, answer.reason)

    async def _alone(self) -> EnvironmentWorker:
        """A process of its own, in which the episode is where it was."""
        if self._own is None:
            own = self._own = await self._workers.server.fork(
                self._seat, self._keys.start_deadline_s
            )
            seen = None
            if self._seen is not None:
                seen = await self._bounded(True, own.reset(*self._began))
            for action in self._actions:
                seen = await self._bounded(False, own.step(action))
            if seen != self._seen:
                raise EnvironmentFailed(
                    "crashed",
                    f"shared a worker process that {self._worker.lost}, and said something else when its episode was repeated: "
                    "remove the capability 'deterministic'",
                )
        return self._own

    async def _bounded(self, first: bool, observation: Awaitable[Observation]) -> Observation:
        keys = self._keys
        deadline_s = keys.reset_deadline_s if first else keys.step_deadline_s
        deadline = asyncio.timeout(deadline_s)
        try:
            async with deadline:
                return await observation
        except TimeoutError:
            if not deadline.expired():
                raise
            raise late(first, keys) from None


class SharedWorkers:
    """Up to ``count`` workers of a fork server; a worker gets no further episode after ``most_episodes``."""

    def __init__(
        self,
        server: RunningForkServer,
        described: str,
        count: int,
        most_episodes: int,
        keys: EnvironmentKeys,
    ) -> None:
        self.server, self._described, self._keys = server, described, keys
        self._count, self.most_episodes = count, most_episodes
        self._workers: dict[int, SharedWorker] = {}
        self._open: list[SharedWorker] = []
        self._starting = asyncio.Lock()
        self._lost = 0

    @property
    def sharing(self) -> bool:
        """Whether further episodes share workers."""
        return self._lost < MOST_LOST

    async def player(self, seat: int) -> SharedPlayer | EnvironmentWorker:
        """A new instance, in a process of its own if that of several is lost meanwhile; :class:`EnvironmentFailed` or
        :class:`UserError` if it cannot be built."""
        deadline_s = self._keys.start_deadline_s
        async with self._starting:
            worker = self._workers.get(seat % self._count)
            if worker is None or worker.worn:
                worker = self._workers[seat % self._count] = await self._started(deadline_s)
        try:
            built = await worker.ask(SharedBuild(seat), deadline_s)
        except SharedWorkerLost:
            return await self.server.fork(seat, deadline_s)
        if isinstance(built, WorkerBuilt):
            return SharedPlayer(seat, worker, built.roles, self, self._keys)
        if isinstance(built, WorkerObserved):
            raise EnvironmentFailed("start", "returned an observation before one was requested")
        raise start_failure(f"could not be built: {built.reason}", built.fatal)

    async def close(self) -> None:
        """End them."""
        for worker in self._open:
            await worker.end()

    async def _started(self, deadline_s: float) -> SharedWorker:
        try:
            async with asyncio.timeout(deadline_s):
                pid, ours = await self.server.process(SHARED)
                worker = await SharedWorker.over(
                    ours
                )  # it may end before its process is known here
        except (TimeoutError, OSError) as error:
            self.server.close()
            reason = (
                str(error) or f"took longer than {deadline_s:g} s ([workflow] start_deadline_s)"
            )
            raise EnvironmentFailed("start", f"its process did not start: {reason}") from error
        worker.told_lost, worker.has_ended = self._note, self.server.has_ended
        worker.pid = pid
        self._open = [one for one in self._open if not one.lost] + [worker]
        return worker

    def _note(self, reason: str) -> None:
        self._lost += 1
        log.warning(
            "environment %s: a worker process that episodes shared %s; they continue in separate processes%s",
            self._described,
            reason,
            "" if self.sharing else ", and so do all further ones",
        )
