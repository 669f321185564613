"""Episodes of an environment: as many at once as the keys allow, each with deadlines, and none that outlives its failure."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Mapping
from typing import Any, Protocol

from astraflow_core.errors import EnvironmentFailed
from astraflow_core.types import Action, ComponentContext, Observation, Prompt
from astraflow_environments.building import ChosenEnvironment, failure_of
from astraflow_environments.forked import RunningForkServer
from astraflow_environments.keys import EnvironmentKeys
from astraflow_environments.observations import MALFORMED, checked

log = logging.getLogger("astraflow.environments")
RECYCLE_AFTER = 500
"""Episodes after which an instance is replaced, so that what it leaks stays bounded."""


class Player(Protocol):
    """One instance, wherever it is. What it returns and raises is that of the environment, unchecked."""

    @property
    def roles(self) -> tuple[str, ...]: ...

    def reset(self, task: Prompt, seed: int) -> Awaitable[Any]: ...

    def step(self, action: Action) -> Awaitable[Any]: ...

    async def end(self) -> None: ...


class NamedMetrics:
    """Warns once of metrics that the configuration names and an episode did not have."""

    def __init__(self, chosen: ChosenEnvironment) -> None:
        self._described, self._names = chosen.described, chosen.named_metrics

    def check(self, metrics: Mapping[str, Any]) -> None:
        """Those of an episode that is over."""
        missing = self._names - metrics.keys()
        if missing:
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
        self.roles, self._named = player.roles, named
        self.under_way = self.failed = False
        self._name, self._player, self._keys = name, player, keys

    def reset(self, task: Prompt, seed: int) -> Coroutine[Any, Any, Observation]:
        """Begin the episode. :class:`EnvironmentFailed` if there is none."""
        keys = self._keys
        return self._within(True, keys.reset_deadline_s, self._player.reset, task, seed)

    def step(self, action: Action) -> Coroutine[Any, Any, Observation]:
        """What follows an action. :class:`EnvironmentFailed` if nothing does; the episode is over then."""
        return self._within(False, self._keys.step_deadline_s, self._player.step, action)

    async def _within(
        self, first: bool, deadline_s: float, call: Callable[..., Awaitable[Any]], *given: Any
    ) -> Observation:
        if self.under_way or self.failed:
            raise RuntimeError(
                "an environment handles one request at a time and none after it failed"
            )
        self.under_way = self.failed = True
        deadline: asyncio.Timeout | None = None
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
                async with asyncio.timeout(deadline_s) as deadline:
                    observation = await _resumed(answer, waited)
            observation = checked(observation, first, self.roles)
        except Exception as error:
            if deadline is not None and deadline.expired():
                key = "reset_deadline_s" if first else "step_deadline_s"
                reason = f"gave no answer within {deadline_s:g} s ([workflow] {key})"
                raise self._failure("timeout", reason) from None
            told = failure_of(error)
            if isinstance(told, EnvironmentFailed):
                raise self._failure(told.kind, told.reason) from error
            raise told from error
        finally:
            self.under_way = False
        self.failed = False
        if observation.outcome is not None:
            self._named.check(observation.metrics)
        return observation

    def _failure(self, kind: str, reason: str) -> EnvironmentFailed:
        return EnvironmentFailed(kind, f"environment {self._name} {reason}")


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
        async with self._slots:
            seat = self._seats.pop()
            played = None
            try:
                player, count = await self._taken(seat)
                played = EpisodeEnvironment(self._chosen.described, player, self._keys, self._named)
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
        self._slots = asyncio.Semaphore(self._keys.most_environments)
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
                error.kind, f"environment {self._chosen.described} {error.reason}"
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

    def reset(self, task: Prompt, seed: int) -> Awaitable[Any]:
        awaited: Awaitable[Any] = self._environment.reset(task, seed)
        return awaited

    def step(self, action: Action) -> Awaitable[Any]:
        awaited: Awaitable[Any] = self._environment.step(action)
        return awaited

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
        except Exception:  # its episode is over, and nobody waits for more
            log.exception("an environment could not be closed")
