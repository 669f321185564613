"""Environments, async or blocking, called step by step; and a player that knows no game."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import random
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from astraflow_core.types import Action, FunctionCall, Observation, Prompt
from astraflow_environments.observations import checked

Acts = Callable[[Observation, random.Random], Action]
"""The action of a model for an observation."""
WORDS = ("yes", "no", "1", "left", "I do not know.", "")


@dataclass
class DrivenEnvironment:
    """An instance, and all its inputs and outputs: ``(action or task, observation)``."""

    name: str
    environment: Any
    capabilities: frozenset[str]
    log: list[tuple[Any, Observation]] = field(default_factory=list)
    _runner: asyncio.Runner = field(default_factory=asyncio.Runner)

    @property
    def roles(self) -> tuple[str, ...]:
        """Its roles; none if it has one without a name."""
        return tuple(self.environment.roles) if "multi_role" in self.capabilities else ()

    def reset(self, task: Prompt, seed: int) -> Observation:
        """Begin an episode; raises :class:`EnvironmentFailed` if its result is not an observation."""
        return self._recorded(task.id, self.environment.reset(task, seed), first=True)

    def step(self, action: Action) -> Observation:
        """One step."""
        return self._recorded(action, self.environment.step(action), first=False)

    def end(self) -> None:
        """Close it, and the event loop that it ran in."""
        self._awaited(self.environment.close())
        self._runner.close()

    def left_tasks(self) -> list[str]:
        """Tasks of the event loop that nobody awaits."""

        async def others() -> list[str]:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            return [f"a task of {task.get_coro()!r:.80}" for task in tasks if not task.done()]

        return self._runner.run(others())

    def _recorded(self, told: Any, result: Any, first: bool) -> Observation:
        observation = checked(self._awaited(result), first, self.roles)
        self.log.append((told, observation))
        return observation

    def _awaited(self, result: Any) -> Any:
        return self._runner.run(_await(result)) if inspect.isawaitable(result) else result


async def _await(result: Any) -> Any:
    return await result


def is_async(environment: Any) -> bool:
    """Whether its methods are coroutine functions."""
    return all(
        inspect.iscoroutinefunction(getattr(environment, name))
        for name in ("reset", "step", "close")
    )


def is_blocking(environment: Any) -> bool:
    """Whether its methods are plain functions."""
    return not any(
        inspect.iscoroutinefunction(getattr(environment, name))
        for name in ("reset", "step", "close")
    )


def play(
    driven: DrivenEnvironment, task: Prompt, seed: int, acts: Acts, most: int, draws: int = 0
) -> Iterator[Observation]:
    """The observations of an episode, its first one included, until it is over or ``most`` actions were made."""
    generator = random.Random(draws)
    observation = driven.reset(task, seed)
    yield observation
    for _ in range(most):
        if observation.outcome is not None:
            return
        observation = driven.step(acts(observation, generator))
        yield observation


async def played(environment: Any, task: Prompt, acts: Acts, most: int) -> None:
    """The same of an async environment, in the loop of the caller."""
    generator = random.Random(0)
    observation = await environment.reset(task, 1)
    for _ in range(most):
        if observation.outcome is not None:
            return
        observation = await environment.step(acts(observation, generator))


def plain(observation: Observation) -> Any:
    """An observation as it arrives from another process."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(observation))


def guess(observation: Observation, generator: random.Random) -> Action:
    """Some word; or a call of some tool, with arguments that its schema allows."""
    role = observation.role
    if not observation.tools:
        return Action(generator.choice(WORDS), role=role)
    function = generator.choice(observation.tools)["function"]
    arguments = made(function.get("parameters", {}), generator)
    return Action("", (FunctionCall("call_0", function["name"], arguments),), role)


def made(schema: Mapping[str, Any], generator: random.Random) -> Any:
    """A value of a JSON schema, as far as tools have them."""
    if "enum" in schema:
        return generator.choice(schema["enum"])
    match schema.get("type", "object"):
        case "object":
            properties = schema.get("properties", {})
            return {name: made(each, generator) for name, each in properties.items()}
        case "integer":
            return generator.randint(schema.get("minimum", 0), schema.get("maximum", 9))
        case "number":
            return generator.random()
        case "boolean":
            return generator.random() < 0.5
        case "array":
            return [made(schema.get("items", {}), generator)]
    return generator.choice(WORDS)


def odd_actions(role: str, tools: tuple[Mapping[str, Any], ...]) -> dict[str, Action]:
    """Actions of a policy under training."""
    names = itertools.chain((tool["function"]["name"] for tool in tools), ["search"])
    name = next(names)
    call = FunctionCall("call_0", name, {})
    return {
        "nothing": Action("", role=role),
        "meaningless text": Action(
            "{}{{0}} %s \\boxed{ </think> \x00\x1b[2J \u2028 " * 3, role=role
        ),
        "a very long text": Action("12 and " * 20_000, role=role),
        "a number that overflows": Action("9" * 400, role=role),
        "a truncated reply": Action("I would", role=role, truncated=True),
        "a call of a tool that does not exist": Action(
            "", (FunctionCall("call_0", "fly", {}),), role
        ),
        "a call without arguments": Action("", (call,), role),
        "a call whose arguments are not an object": Action(
            "", (FunctionCall("call_0", name, '{"direction": "le'),), role
        ),
        "a call with values of other types": Action(
            "", (FunctionCall("call_0", name, {key: [None, {"x": 1e300}] for key in "abc"}),), role
        ),
        "several calls": Action(
            "Both.",
            (call, FunctionCall("call_1", name, {}), FunctionCall("call_2", "fly", {})),
            role,
        ),
    }


def run_async(play_it: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Await it in a separate event loop."""
    return asyncio.run(play_it())
