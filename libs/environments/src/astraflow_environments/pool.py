"""Episodes of an environment: as many at once as the keys allow, each with deadlines, and none that outlives its failure."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from typing import Any, Protocol

from astraflow_core.errors import ConfigError, EnvironmentFailed
from astraflow_core.types import Action, ComponentContext, Observation, Prompt
from astraflow_environments.building import ChosenEnvironment, failure_of
from astraflow_environments.forked import RunningForkServer, late
from astraflow_environments.keys import EnvironmentKeys
from astraflow_environments.observations import MALFORMED, checked
from astraflow_environments.sharing import SharedWorkers

log = logging.getLogger("astraflow.environments")
RECYCLE_AFTER = 500
"""Episodes after which an instance is replaced, so that what it leaks stays bounded."""


class Player(Protocol):
    """One instance, wherever it is. What it returns and raises is that of the environment, unchecked."""

    @property
    def roles(self) -> tuple[str, ...]: ...

    @property
    def bounds_itself(self) -> bool:
        """Whether its calls have the deadlines of the keys already."""

    @property
    def worn(self) -> bool:
        """Whether it is replaced before another episode."""

    def reset(self, task: Prompt, seed: int) -> Awaitable[Any]: ...

    def step(self, action: Action) -> Awaitable[Any]: ...

    async def end(self) -> None: ...


class NamedMetrics:
    """Warns once of metrics that the configuration names and an episode did not have."""

    def __init__(self, chosen: ChosenEnvironment) -> None:
        self._described, self._names = chosen.described, chosen.named_metrics

    def check(self, metrics: Mapping[str, Any]) -> None:
        """Those of an episode that is over."""
        if self._names and (missing := self._names - metrics.keys()):
            log.warning(
                "environment %s: an episode has ended without %s, which [workflow.environment] metrics names; it has %s. "
                "There is no further warning",
                self._described,
                ", ".join(map(repr, sorted(missing))),
                ", ".join(map(repr, sorted(metrics))) or "none",
            )
            self._names = frozenset()


class EpisodeEnvironment:
    """An environment for one episode, ``name`` in messages; ``roles`` are those that act in it, none if it has one without a name."""

    def __init__(
        self, name: str, player: Player, keys: EnvironmentKeys, named: NamedMetrics
    ) -> None:
        self.roles, self.failed, self._named = player.roles, False, named
        self._name, self._player, self._keys = name, player, keys

    def reset(self, task: Prompt, seed: int) -> Coroutine[Any, Any, Observation]:
        """Begin the episode. :class:`EnvironmentFailed` if there is none."""
        return self._within(True, self._player.reset, task, seed)

    def step(self, action: Action) -> Coroutine[Any, Any, Observation]:
        """What follows an action. :class:`EnvironmentFailed` if nothing does; the episode is over then."""
        return self._within(False, self._player.step, action)

    async def _within(
        self, first: bool, call: Callable[..., Awaitable[Any]], *given: Any
    ) -> Observation:
        if self.failed:
            raise RuntimeError(
                "an environment handles one request at a time and none after it failed"
            )
        self.failed = True  # until it has answered
        try:
            answer = call(*given)
            if type(answer) is not types.CoroutineType:
                answer = _awaited(answer, "reset" if first else "step")
            # What waits for nothing cannot be late, and a step of a game is cheaper than a timer.
            try:
                waited = answer.send(None)
            except StopIteration as done:
                observation = done.value
            else:
                observation = await self._waited(first, answer, waited)
            observation = checked(observation, first, self.roles)
        except Exception as error:
            told = failure_of(error)
            if isinstance(told, EnvironmentFailed):
                described = EnvironmentFailed(told.kind, f"environment {self._name} {told.reason}")
                raise described from error
            raise told from error
        self.failed = False
        if observation.outcome is not None:
            self._named.check(observation.metrics)
        return observation

    async def _waited(
        self, first: bool, answer: Coroutine[Any, Any, Observation], waited: Any
    ) -> Observation:
        if self._player.bounds_itself:
            return await _resumed(answer, waited)
        keys = self._keys
        deadline = asyncio.timeout(keys.reset_deadline_s if first else keys.step_deadline_s)
        try:
            async with deadline:
                return await _resumed(answer, waited)
        except Exception:
            if deadline.expired():
                raise late(first, keys) from None
            raise


async def _awaited(answer: Any, method: str) -> Any:
    """What a method of an environment that does not block is awaited for."""
    if not isinstance(answer, Awaitable):
        raise EnvironmentFailed(
            MALFORMED,
            f"has a plain `def {method}`, which returned {type(answer).__name__}: write `async def {method}`, or declare the "
            "capability 'blocking', with which `reset`, `step` and `close` are plain functions in a worker process",
        )
    return await answer


@types.coroutine
def _resumed(
    call: Coroutine[Any, Any, Observation], waited: Any
) -> Generator[Any, Any, Observation]:
    """What ``call`` returns, which was begun and waits for ``waited``."""
    while True:
        try:
            sent = yield waited
        except BaseException as error:  # noqa: BLE001 - a cancellation, too, is what the call gets
            resume = functools.partial(call.throw, error)
        else:
            resume = functools.partial(call.send, sent)
        try:
            waited = resume()
        except StopIteration as done:
            observation: Observation = done.value
            return observation


class EnvironmentPool:
    """Instances of the environment that ``keys`` name: on the event loop, or in worker processes if it declares
    ``blocking``. They are built when they are needed and used again. A worker that hangs or dies is killed and
    replaced, together with what it has started; none outlives the process that has the pool."""

    def __init__(self, keys: EnvironmentKeys, context: ComponentContext) -> None:
        self._keys, self._context = keys, context
        self._chosen = ChosenEnvironment.of(keys.environment, context)
        self._named = NamedMetrics(self._chosen)
        self.name: str = keys.environment["use"]
        self.capabilities = self._chosen.capabilities
        self._described = self._chosen.described
        self._processes = _processes(self._chosen, keys)
        self.replaced = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._begin()

    def episode(self) -> contextlib.AbstractAsyncContextManager[EpisodeEnvironment]:
        """An environment for one episode; waits until there is a place for it. However the block is left, nothing of
        the episode continues."""
        return _Episode(self)

    async def close(self) -> None:
        """End all instances and worker processes."""
        usable = self._loop is asyncio.get_running_loop()
        players = [player for player, _ in self._idle.values()] if usable else []
        server, shared = self._server, self._shared if usable else None
        self._begin()
        await asyncio.gather(*(player.end() for player in players))
        if shared is not None:
            await shared.close()
        if server is not None:
            server.close()

    def _of_this_loop(self) -> None:
        if self._loop is not asyncio.get_running_loop():
            self._begin()
            self._loop = asyncio.get_running_loop()

    def _begin(self) -> None:
        """Nothing exists yet; objects of another event loop cannot be used."""
        self._slots = asyncio.Semaphore(self._keys.most_environments)
        self._seats = list(reversed(range(self._keys.most_environments)))
        self._idle: dict[int, tuple[Player, int]] = {}
        self._server: RunningForkServer | None = None
        self._shared: SharedWorkers | None = None
        self._starting = asyncio.Lock()

    async def _built(self, seat: int) -> tuple[Player, int]:
        """A new instance for a seat, and the episodes that it has played."""
        if "blocking" not in self.capabilities:
            return _OnLoop.built(self._chosen, seat), 0
        deadline_s = self._keys.start_deadline_s
        try:
            server = await self._fork_server()
            shared = self._shared
            if shared is not None and shared.sharing:
                return await shared.player(seat), 0
            return await server.fork(seat, deadline_s), 0
        except EnvironmentFailed as error:
            raise EnvironmentFailed(
                error.kind, f"environment {self._described} {error.reason}"
            ) from error

    async def _fork_server(self) -> RunningForkServer:
        async with self._starting:
            if self._server is None or not self._server.alive:
                keys = self._keys
                self._server = await RunningForkServer.start(
                    keys.environment,
                    self._context,
                    keys.worker_memory_mb or 0,
                    keys.worker_python,
                    keys.start_deadline_s,
                )
                if self._processes:
                    most = RECYCLE_AFTER * -(-keys.most_environments // self._processes)
                    self._shared = SharedWorkers(
                        self._server, self._described, self._processes, most, keys
                    )
        return self._server

    async def _given_back(self, seat: int, player: Player, count: int, failed: bool) -> None:
        if failed:
            self.replaced += 1
            log.info("an instance of environment %r is replaced", self.name)
        if not (failed or count >= RECYCLE_AFTER or player.worn):
            self._idle[seat] = player, count
            return
        # A worker that several share ends with the last of them.
        worn = [seat for seat, (idle, _) in self._idle.items() if idle.worn]
        gone = [player, *(self._idle.pop(seat)[0] for seat in worn)]
        await asyncio.shield(asyncio.gather(*(one.end() for one in gone)))


class _Episode:
    """A place in a pool and its instance, as long as an episode takes. A class, since a generator as context manager takes
    as long as a step of a game."""

    def __init__(self, pool: EnvironmentPool) -> None:
        self._pool = pool

    async def __aenter__(self) -> EpisodeEnvironment:
        pool = self._pool
        pool._of_this_loop()
        self._slots, self._seats = pool._slots, pool._seats
        await self._slots.acquire()
        self._seat = self._seats.pop()
        try:
            idle = pool._idle.pop(self._seat, None)
            self._player, self._count = idle or await pool._built(self._seat)
            if self._player.worn:
                await self._player.end()
                self._player, self._count = await pool._built(self._seat)
        except BaseException:
            self._leave()
            raise
        self._played = EpisodeEnvironment(pool._described, self._player, pool._keys, pool._named)
        return self._played

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._pool._given_back(
                self._seat, self._player, self._count + 1, self._played.failed
            )
        finally:
            self._leave()

    def _leave(self) -> None:
        self._seats.append(self._seat)
        self._slots.release()


def _processes(chosen: ChosenEnvironment, keys: EnvironmentKeys) -> int:
    """How many worker processes the instances share; 0: each has its own."""
    can_share = {"blocking", "deterministic"} <= chosen.capabilities
    if keys.worker_processes is None:
        # The suite that tests what sharing takes runs in our interpreter.
        shares = can_share and keys.worker_python is None
        most = _processors() if shares else keys.most_environments
    elif can_share:
        most = keys.worker_processes
    else:
        problem = (
            f"[workflow] worker_processes = {keys.worker_processes}: the environment {chosen.described} does not declare "
            "'blocking' and 'deterministic', which it takes for episodes to share worker processes; remove the key"
        )
        raise ConfigError([problem])
    return most if most < keys.most_environments else 0


def _processors() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _OnLoop:
    """An instance on the event loop."""

    bounds_itself = worn = False

    def __init__(self, environment: Any, roles: tuple[str, ...]) -> None:
        self._environment, self.roles = environment, roles
        self.reset: Callable[[Prompt, int], Awaitable[Any]] = environment.reset
        self.step: Callable[[Action], Awaitable[Any]] = environment.step

    @classmethod
    def built(cls, chosen: ChosenEnvironment, seat: int) -> _OnLoop:
        try:
            return cls(*chosen.build(seat))
        except Exception as error:
            told = failure_of(error)
            if isinstance(told, EnvironmentFailed):
                told = EnvironmentFailed("start", f"could not be built: {told.reason}")
            raise told from error

    async def end(self) -> None:
        try:
            closed = self._environment.close()
            if not isinstance(closed, Awaitable):
                log.warning(
                    "%s has a plain `def close`: write `async def close`",
                    type(self._environment).__qualname__,
                )
                return
            await closed
        except Exception:  # its episode is over, and nothing waits for more
            log.exception("an environment could not be closed")
