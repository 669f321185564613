"""A user's own workflow and reward objects, passed to the Python API and transferred in a file."""

from __future__ import annotations

import inspect
import os
import stat
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle

from astraflow_core.errors import UserError
from astraflow_core.protocols.workflow import PolicyEngine
from astraflow_core.types import Prompt, Trajectory

FILE = "user_objects.pkl"
"""Beside the run's config; written with mode 0600 by the launcher, for its own children only."""


@dataclass(frozen=True, slots=True)
class UserObjects:
    """The user's objects; ``None`` where the config names a component."""

    workflow: Any = None
    reward: Any = None


def load_user_objects(directory: Path) -> UserObjects:
    """The objects of a run, from its own directory and never from the network."""
    file = directory / FILE
    if not file.is_file():
        return UserObjects()
    try:
        found = cloudpickle.loads(read_own(file))
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"the workflow or reward object given to run() cannot be loaded in another process: {error}; "
            "define it in the notebook or in an importable module"
        ) from error
    return UserObjects(found.get("workflow"), found.get("reward"))


def read_own(file: Path) -> bytes:
    """The content of a file that only this user can have written: loading it executes it."""
    with file.open("rb") as opened:
        facts = os.fstat(opened.fileno())
        if facts.st_uid != os.geteuid() or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise UserError(
                f"{file} holds code and is not loaded: it belongs to user {facts.st_uid} with mode "
                f"{stat.S_IMODE(facts.st_mode):o}, but user {os.geteuid()} must own it and be the only one who can "
                "write it; start all processes as the same user, or `chmod 600` the file if you trust it"
            )
        return opened.read()


def name_of(given: Any) -> str:
    """The name of a user's object in errors."""
    return getattr(given, "__name__", None) or type(given).__name__


class FunctionWorkflow:
    """An async function ``(engines, prompt) -> trajectory`` as a workflow."""

    def __init__(self, function: Callable[..., Awaitable[Trajectory | None]]) -> None:
        self._function = function

    async def run_episode(
        self, engines: Mapping[str, PolicyEngine], prompt: Prompt
    ) -> Trajectory | None:
        """Play one episode."""
        return await self._function(engines, prompt)


def as_workflow(given: Any) -> Any:
    """A user's workflow: an object with an async ``run_episode``, or an async function."""
    method = getattr(given, "run_episode", None)
    if method is not None and inspect.iscoroutinefunction(method):
        return given
    if method is None and inspect.iscoroutinefunction(given):
        return FunctionWorkflow(given)
    raise UserError(
        f"the workflow {name_of(given)!r} given to run() must be an async function (engines, prompt), or an "
        "object with an async method run_episode(engines, prompt)"
    )


def checked_workflow(name: str, workflow: Any) -> Any:
    """The workflow that component ``name`` built; :class:`UserError` unless its ``run_episode`` is async."""
    if inspect.iscoroutinefunction(getattr(workflow, "run_episode", None)):
        return workflow
    raise UserError(
        f"the workflow {name!r} must have a method `async def run_episode(self, engines, prompt)`: many episodes run "
        f"at once on one event loop, and that of {type(workflow).__name__} is not a coroutine function"
    )


def checked_reward(name: str, reward: Any) -> Any:
    """The reward that component ``name`` built; :class:`UserError` unless it is a function or has a ``score``."""
    if callable(getattr(reward, "score", reward)):
        return reward
    raise UserError(
        f"the reward {name!r} must return an object with a method score(view), or a function of a view; it "
        f"returned an object of type {type(reward).__name__}, which is neither"
    )


def score_function(reward: Any) -> Callable[..., Any]:
    """The function to call with a view: the ``score`` of a reward object, or the reward itself."""
    method = getattr(reward, "score", reward)
    if not callable(method):
        raise UserError(
            f"the reward {name_of(reward)!r} must be a function of a view, or an object with score(view)"
        )
    function: Callable[..., Any] = method
    return function


def asks_engines(reward: Any) -> bool:
    """Whether the reward's score has a parameter ``engines``, to ask a judge for example."""
    return "engines" in inspect.signature(score_function(reward)).parameters


def is_async(reward: Any) -> bool:
    """Whether the reward's score is async; if not, it may block the event loop."""
    method = getattr(reward, "score", reward)
    return inspect.iscoroutinefunction(method) or inspect.iscoroutinefunction(
        getattr(method, "__call__", None)  # noqa: B004 - an instance with an async __call__
    )
