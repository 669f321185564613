"""The messages between an environment and the policies that play in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """How an episode of an environment ended. A failure is not an outcome: an environment that cannot continue raises
    :class:`astraflow_core.errors.EnvironmentFailed`, so that its failure is not mistaken for a reward of 0."""

    FINISHED = "finished"
    """It came to its end: won, lost, answered."""
    TRUNCATED = "truncated"
    """It was cut off: the environment's limit on steps, time or money was reached."""


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call of a tool, as a model wrote it. ``arguments`` is an object, or the text that is not a JSON object."""

    id: str
    name: str
    arguments: dict[str, Any] | str


@dataclass(frozen=True, slots=True)
class Action:
    """What ``role`` did in its turn: the text of its reply without reasoning and tool calls, and the calls. ``role`` is
    that of the observation which it answers. ``truncated``: the reply was cut off at a bound on tokens."""

    text: str
    calls: tuple[FunctionCall, ...] = ()
    role: str = ""
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Observation:
    """What an environment says at the beginning of an episode and after each action.

    ``messages`` are chat messages, JSON-like, as OpenAI has them, which are added to the conversation of ``role``, who
    acts next: at its first turn a whole conversation (a system message perhaps), later what is new. Each call of an
    action is answered by a message of the role ``tool`` with its ``tool_call_id``. ``tools`` are what may be called in
    that turn, each ``{"type": "function", "function": {"name", "description", "parameters"}}``.

    ``reward`` is what the action before it earned, finite and 0 at the beginning; with several roles role → reward, of
    any of them. What an episode earned is the sum. ``outcome`` is set once the episode is over; ``messages`` may be
    empty then, and no reply follows. ``state`` identifies the state that ``role`` is in: observations of episodes of one
    task are equal in it if, and only if, the same can follow (algorithms such as GiGPO compare actions taken there);
    ``None`` if that is not known. ``metrics``: name → finite number, of the episode so far; the last of a name counts.
    """

    messages: tuple[Mapping[str, Any], ...] = ()
    reward: float | Mapping[str, float] = 0.0
    outcome: Outcome | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    role: str = ""
    state: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
