"""Episodes of an environment: as many at once as the keys allow, each with deadlines, and none that outlives its failure."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from typing import Any, Protocol

from astraflow_core.errors import EnvironmentFailed
from astraflow_core.types import Action, ComponentContext, Observation, Prompt
from astraflow_environments.building import ChosenEnvironment, failure_of
from astraflow_environments.forked import RunningForkServer
from astraflow_environments.keys import EnvironmentKeys
from astraflow_environments.observations import checked

log = logging.getLogger("astraflow.environments")
RECYCLE_AFTER = 500
"""Episodes after which an instance is replaced, so that what it leaks stays bounded."""


class Player(Protocol):
    """One instance, wherever it is. What it raises is an :class:`EnvironmentFailed` or a mistake of the user."""

    @property
    def roles(self) -> tuple[str, ...]: ...

    def reset(self, task: Prompt, seed: int) -> Coroutine[Any, Any, Observation]: ...

    def step(self, action: Action) -> Coroutine[Any, Any, Observation]: ...

    async def end(self) -> None: ...


class EpisodeEnvironment:
    """An environment for one episode; ``roles`` are those that act in it, none if it has one without a name."""

    def __init__(self, name: str, player: Player, keys: EnvironmentKeys) -> None:
        self.roles = player.roles
        self.under_way = self.failed = False
        self._name, self._player, self._keys = name, player, keys

    def reset(self, task: Prompt, seed: int) -> Coroutine[Any, Any, Observation]:
        """Begin the episode. :class:`EnvironmentFailed` if there is none."""
        call = self._player.reset(task, seed)
        return self._within(call, self._keys.reset_deadline_s, "reset_deadline_s")

    def step(self, action: Action) -> Coroutine[Any, Any, Observation]:
        """What follows an action. :class:`EnvironmentFailed` if nothing does; the episode is over then."""
        call = self._player.step(action)
        return self._within(call, self._keys.step_deadline_s, "step_deadline_s")

    async def _within(
        self, call: Coroutine[Any, Any, Observation], deadline_s: float, key: str
    ) -> Observation:
        if self.under_way or self.failed:
            raise RuntimeError(
                "an environment handles one request at a time and none after it failed"
            )
        self.under_way = self.failed = True
        try:
            # What waits for nothing cannot be late, and a step of a game is cheaper than a timer.
            waited = call.send(None)
            async with asyncio.timeout(deadline_s):
                observation = await _resumed(call, waited)
        except StopIteration as done:
            observation = done.value
        except TimeoutError:
            reason = f"gave no answer within {deadline_s:g} s ([workflow] {key})"
            raise self._failure("timeout", reason) from None
        except EnvironmentFailed as error:
            raise self._failure(error.kind, error.reason) from error
        finally:
            self.under_way = False
        self.failed = False
        return observation

    def _failure(self, kind: str, reason: str) -> EnvironmentFailed:
        return EnvironmentFailed(kind, f"environment {self._name!r} {reason}")


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
        self.name: str = keys.environment["use"]
        self.capabilities = self._chosen.capabilities
        self.replaced = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._begin()

    @contextlib.asynccontextmanager
    async def episode(self) -> AsyncIterator[EpisodeEnvironment]:
        """An environment for one episode; waits until there is a place for it. However the block is left, nothing of
        the episode continues."""
        if self._loop is not asyncio.get_running_loop():
            self._begin()
            self._loop = asyncio.get_running_loop()
        async with self._places:
            seat = self._seats.pop()
            played = None
            try:
                player, count = await self._taken(seat)
                played = EpisodeEnvironment(self.name, player, self._keys)
                yield played
            finally:
                try:
                    if played is not None:
                        await self._given_back(seat, player, count + 1, played.failed)
                finally:
                    self._seats.append(seat)

    async def close(self) -> None:
        """End all instances and worker processes."""
        usable = self._loop is asyncio.get_running_loop()
        players = [player for player, _ in self._idle.values()] if usable else []
        server = self._server
        self._begin()
        await asyncio.gather(*(player.end() for player in players))
        if server is not None:
            server.close()

    def _begin(self) -> None:
        """Nothing is there yet; of another event loop nothing can be used."""
        self._places = asyncio.Semaphore(self._keys.most_environments)
        self._seats = list(reversed(range(self._keys.most_environments)))
        self._idle: dict[int, tuple[Player, int]] = {}
        self._server: RunningForkServer | None = None
        self._starting = asyncio.Lock()

    async def _taken(self, seat: int) -> tuple[Player, int]:
        """The instance of a seat and the episodes that it has played."""
        if seat in self._idle:
            return self._idle.pop(seat)
        if "blocking" not in self.capabilities:
            return _OnLoop.built(self._chosen, seat), 0
        deadline_s = self._keys.start_deadline_s
        try:
            server = await self._fork_server()
            return await server.fork(seat, deadline_s), 0
        except EnvironmentFailed as error:
            raise EnvironmentFailed(
                error.kind, f"environment {self.name!r} {error.reason}"
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
        return self._server

    async def _given_back(self, seat: int, player: Player, count: int, failed: bool) -> None:
        if failed:
            self.replaced += 1
            log.info("an instance of environment %r is replaced", self.name)
        if failed or count >= RECYCLE_AFTER:
            await asyncio.shield(player.end())
        else:
            self._idle[seat] = player, count


class _OnLoop:
    """An instance on the event loop."""

    def __init__(self, environment: Any, roles: tuple[str, ...]) -> None:
        self._environment, self.roles = environment, roles

    @classmethod
    def built(cls, chosen: ChosenEnvironment, seat: int) -> _OnLoop:
        try:
            return cls(*chosen.build(seat))
        except Exception as error:
            told = failure_of(error)
            if isinstance(told, EnvironmentFailed):
                told = EnvironmentFailed("start", f"could not be built: {told.reason}")
            raise told from error

    def reset(self, task: Prompt, seed: int) -> Coroutine[Any, Any, Observation]:
        return self._observed(True, self._environment.reset, task, seed)

    def step(self, action: Action) -> Coroutine[Any, Any, Observation]:
        return self._observed(False, self._environment.step, action)

    async def end(self) -> None:
        try:
            await self._environment.close()
        except Exception:  # its episode is over, and nobody waits for more
            log.exception("an environment could not be closed")

    async def _observed(
        self, first: bool, call: Callable[..., Awaitable[Any]], *given: Any
    ) -> Observation:
        try:
            return checked(await call(*given), first, self.roles)
        except Exception as error:
            raise failure_of(error) from error
