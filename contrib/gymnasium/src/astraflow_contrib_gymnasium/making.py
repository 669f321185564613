"""The environment that the keys name, and whether it can be played in text."""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium

from astraflow_contrib_gymnasium.config import GymnasiumConfig
from astraflow_contrib_gymnasium.texts import not_text
from astraflow_core.errors import PreflightError

Environment = gymnasium.Env[Any, Any]


def made(config: GymnasiumConfig) -> Environment:
    """An instance; :class:`PreflightError` says why there is none, or what of it cannot be text."""
    arguments = dict(config.arguments)
    if config.observations == "render":
        arguments.setdefault("render_mode", "ansi")
    try:
        environment = _built(config.id, arguments)
    except (ImportError, gymnasium.error.Error) as error:
        raise _refused(config, f"cannot be made: {error}") from error
    except TypeError as error:
        raise _refused(config, f"does not take these arguments: {error}") from error
    for name in ("observation_space", "action_space"):
        space = getattr(environment, name, None)
        if not isinstance(space, gymnasium.Space):
            raise _refused(
                config,
                f"has no {name} of Gymnasium; an environment of the older gym needs a wrapper",
            )
    _check_observations(config, environment)
    return environment


def _built(name: str, arguments: dict[str, Any]) -> Environment:
    module_name, colon, attribute = name.partition(":")
    if colon:
        factory = getattr(importlib.import_module(module_name), attribute, None)
        if callable(factory):
            environment: Environment = factory(**arguments)
            return environment
    return gymnasium.make(name, **arguments)


def _check_observations(config: GymnasiumConfig, environment: Environment) -> None:
    if config.observations == "render":
        modes = environment.metadata.get("render_modes", ())
        if environment.render_mode != "ansi" or "ansi" not in modes:
            told = ", ".join(map(str, modes)) or "none"
            raise _refused(config, f"does not render text: its render modes are {told}")
        return
    space = environment.observation_space
    if config.fields:
        there = list(space.spaces) if isinstance(space, gymnasium.spaces.Dict) else []
        for name in config.fields:
            if name not in there:
                raise _refused(
                    config,
                    f"has no field {name!r} in its observations ([workflow.environment] fields): {_space_text(space)}",
                )
        space = gymnasium.spaces.Dict({name: space[name] for name in config.fields})  # type: ignore[index]
    if problem := not_text(space):
        raise _refused(
            config,
            f"has observations that cannot be text: {problem}. Show some of a Dict ([workflow.environment] fields), "
            'what it renders (observations = "render"), or wrap it',
        )


def _refused(config: GymnasiumConfig, problem: str) -> PreflightError:
    return PreflightError(f"environment 'gymnasium': {config.id} {problem}")


def _space_text(space: gymnasium.Space[Any]) -> str:
    return f"{space!r:.300}"
