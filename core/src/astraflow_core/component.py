"""What a plugin declares: named components and commands, as strings that are imported only when they are used."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from astraflow_core.errors import PluginError

API_VERSION = (1, 0)
"""Plugin API of this core: a plugin loads if its major version is equal and its minor version not higher."""


class Kind(StrEnum):
    """The eleven kinds of component; each has one registration hook."""

    ENGINE = "engine"
    TRAINER = "trainer"
    ALGORITHM = "algorithm"
    DATA_POLICY = "data_policy"
    TRANSPORT = "transport"
    WORKFLOW = "workflow"
    ENVIRONMENT = "environment"
    REWARD = "reward"
    PROMPT_SOURCE = "prompt_source"
    LAUNCHER = "launcher"
    TRACKER = "tracker"

    @property
    def hook(self) -> str:
        """Name of the registration hook: ``astraflow_engines``, ``astraflow_data_policies`` …"""
        plural = "data_policies" if self is Kind.DATA_POLICY else f"{self.value}s"
        return f"astraflow_{plural}"


@dataclass(frozen=True, slots=True)
class Component:
    """One named thing that a plugin provides.

    ``target`` is ``"module:attribute"`` of a factory called as ``factory(config, context)`` with the
    validated config model (or ``None``) and a :class:`astraflow_core.types.ComponentContext`; for a reward
    it may be the reward itself, a function of a view (:func:`is_reward_function`).
    ``config`` is ``"module:attribute"`` of a frozen pydantic model with ``extra="forbid"``.
    ``capabilities`` are flags of :mod:`astraflow_core.capabilities` for this kind.
    """

    name: str
    target: str
    summary: str
    config: str | None = None
    capabilities: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Command:
    """One command of ``astraflow`` that a plugin provides.

    ``name`` is one word or two: ``"doctor"``, ``"raas check"``. ``summary`` is its line in ``astraflow --help``, below
    the title ``group``. ``target`` is ``"module:function"``, imported when the command is called. The function gets the
    command's :class:`argparse.ArgumentParser` and declares the arguments; ``parser.set_defaults(command=run)`` names the function that
    gets the parsed arguments and returns the exit code.
    """

    name: str
    summary: str
    group: str
    target: str


class CannotImport(PluginError):
    """The import of a component's module failed; the cause is what the module raised."""


def load_attribute(reference: str) -> Any:
    """Import ``"module:attribute"``; raises :class:`PluginError` naming the part that failed, and
    :class:`CannotImport` if the module raises."""
    module_name, colon, attribute = reference.partition(":")
    if not (colon and module_name and attribute):
        raise PluginError(f"{reference!r} is not of the form 'module:attribute'")
    try:
        value: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        said = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
        raise CannotImport(f"cannot import {module_name!r} of {reference!r}: {said}") from error
    for part in attribute.split("."):
        try:
            value = getattr(value, part)
        except AttributeError as error:
            raise PluginError(f"module {module_name!r} has no attribute {attribute!r}") from error
    return value


def is_reward_function(target: Any) -> bool:
    """Whether ``target`` is itself a reward, a function of a view (and maybe ``engines``), and no factory, which takes
    ``(config, context)``."""
    if not inspect.isfunction(target):
        return False
    needed = [
        parameter.name
        for parameter in inspect.signature(target).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    return len([name for name in needed if name != "engines"]) == 1
