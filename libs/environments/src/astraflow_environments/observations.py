"""Whether an observation is one: what an environment may not say is its failure, and not the model's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import isfinite
from numbers import Real
from typing import Any

from astraflow_core.errors import EnvironmentFailed
from astraflow_core.types import Observation, Outcome

MALFORMED = "malformed"
_LISTS = (tuple, list)


def checked(observation: Any, first: bool, roles: tuple[str, ...]) -> Observation:
    """The observation, of an environment with these ``roles`` (none: it has one, without a name).
    :class:`EnvironmentFailed` names what is wrong. ``first``: it begins an episode."""
    if type(observation) is Observation and _is_plain(observation, first, roles):
        return observation
    if not isinstance(observation, Observation):
        kind = type(observation).__name__
        raise EnvironmentFailed(MALFORMED, f"gave {kind} in the place of an Observation")
    for problem in _shapeless(observation):
        raise EnvironmentFailed(MALFORMED, problem)
    for problem in _problems(observation, first, roles):
        raise EnvironmentFailed(MALFORMED, problem)
    reward = observation.reward
    return replace(
        observation,
        reward=_plain(reward) if isinstance(reward, Mapping) else float(reward),
        metrics=_plain(observation.metrics),
    )


def _is_plain(seen: Observation, first: bool, roles: tuple[str, ...]) -> bool:
    """Whether there is nothing to find and nothing to convert, as is so of nearly every step: a fraction of the time
    that it takes to build an error message, which counts where a step takes some microseconds."""
    reward, outcome = seen.reward, seen.outcome
    state, messages, tools, metrics = seen.state, seen.messages, seen.tools, seen.metrics
    if type(reward) is not float or not isfinite(reward):
        return False
    if outcome is None:
        if not messages or (seen.role not in roles if roles else seen.role != ""):
            return False
    elif type(outcome) is not Outcome or first:
        return False
    if (first and reward) or type(messages) not in _LISTS or type(tools) not in _LISTS:
        return False
    if not (state is None or type(state) is str) or type(metrics) is not dict:
        return False
    for message in messages:
        if type(message) is not dict or type(message.get("role")) is not str:
            return False
        if type(message.get("content")) is not str:
            return False
    for tool in tools:
        if type(tool) is not dict or type(tool.get("function")) is not dict:
            return False
    if metrics:
        for name, value in metrics.items():
            if type(name) is not str or type(value) is not float or not isfinite(value):
                return False
    return True


def _plain(numbers: Mapping[str, float]) -> dict[str, float]:
    """Numbers of numpy and the like as floats, which a message can hold."""
    return {name: float(value) for name, value in numbers.items()}


def _shapeless(seen: Any) -> Iterator[str]:
    """What cannot be looked at further."""
    for name in ("messages", "tools"):
        each = getattr(seen, name)
        if not isinstance(each, _LISTS):
            yield f"gave the {name} {each!r:.80}; they are a tuple of dicts"
    if not isinstance(seen.metrics, Mapping):
        yield f"gave the metrics {seen.metrics!r:.80}; they are a dict of names to numbers"


def _problems(seen: Observation, first: bool, roles: tuple[str, ...]) -> Iterator[str]:
    ended = seen.outcome is not None
    if ended and not isinstance(seen.outcome, Outcome):
        yield f"gave the outcome {seen.outcome!r}; expected one of {', '.join(map(repr, Outcome))}"
    if first and ended:
        yield "started an episode that is already over: no action is possible"
    if not ended and not seen.messages:
        yield "returned no message for the role that acts next"
    messages: tuple[Any, ...] = seen.messages
    tools: tuple[Any, ...] = seen.tools
    for message in messages:
        if not (isinstance(message, Mapping) and isinstance(message.get("role"), str)):
            yield f"returned a message without a role: {message!r:.80}"
        elif not isinstance(message.get("content"), str | list | tuple | None):
            yield f"returned a message whose content is not text: {message!r:.80}"
    for tool in tools:
        if not (isinstance(tool, Mapping) and isinstance(tool.get("function"), Mapping)):
            yield f"returned a tool without a function: {tool!r:.80}"
    if not ended and seen.role not in (roles or ("",)):
        has = f"its roles are {', '.join(map(repr, roles))}" if roles else "it has no roles"
        yield f"says that {seen.role!r} acts next; {has}"
    state: Any = seen.state
    if not (state is None or isinstance(state, str)):
        yield f"gave the state {state!r:.80}; a state is a text, or None"
    rewards = seen.reward
    if isinstance(rewards, Mapping) and (others := rewards.keys() - set(roles)):
        yield f"gave a reward to {', '.join(map(repr, sorted(others)))}, which is not one of its roles"
    values = rewards.values() if isinstance(rewards, Mapping) else (rewards,)
    if not all(map(_finite, values)):
        yield f"gave the reward {rewards!r:.80}; a reward is a finite number"
    if first and any(values):
        yield f"gave the reward {rewards!r:.80} before the first action"
    if not all(isinstance(name, str) for name in seen.metrics):
        yield f"returned metrics whose names are not texts: {dict(seen.metrics)!r:.80}"
    if not all(map(_finite, seen.metrics.values())):
        yield f"returned metrics that are not finite numbers: {dict(seen.metrics)!r:.80}"


def _finite(value: Any) -> bool:
    try:
        return isinstance(value, Real) and isfinite(value)
    except OverflowError:  # an integer beyond the range of a float
        return False
