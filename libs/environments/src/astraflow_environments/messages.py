"""The messages between a pool and its worker processes, as msgpack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from astraflow_core.types import Action, ComponentContext, Observation, Prompt, Ranks, RunInfo


class EnvironmentSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker builds. ``context`` is a :class:`ComponentContext`, ``path`` the folders in which modules are looked
    for (none: those of the interpreter), ``memory_mb`` the bound on the address space of a worker (0: none)."""

    table: dict[str, Any]
    context: dict[str, Any]
    path: list[str] = []
    memory_mb: int = 0

    @property
    def component_context(self) -> ComponentContext:
        """The context, as an object."""
        types = (ComponentContext, RunInfo, Ranks)
        built: ComponentContext = msgspec.convert(self.context, types[0], dec_hook=_as_path)
        return built


class ResetCall(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Begin an episode."""

    task: Prompt
    seed: int


class StepCall(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """One step."""

    action: Action


class SharedBuild(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Build an instance in a worker that several share; each answer of such a worker is that of its oldest call."""

    seat: int


class SharedReset(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Begin an episode of an instance."""

    seat: int
    task: Prompt
    seed: int


class SharedStep(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """One step of an instance."""

    seat: int
    action: Action


class SharedClose(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Close an instance. It has no answer."""

    seat: int


class WorkerBuilt(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The environment is built; the first thing that a worker says."""

    roles: tuple[str, ...] = ()


class WorkerObserved(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What a call gave."""

    observation: Observation


class WorkerFailed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What a call raised. ``fatal``: a mistake of the user, which no other attempt can avoid."""

    kind: str
    reason: str
    fatal: bool = False


Call = ResetCall | StepCall
SharedCall = SharedBuild | SharedReset | SharedStep | SharedClose
Answer = WorkerBuilt | WorkerObserved | WorkerFailed


class ForkedWorker(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A worker process has started."""

    pid: int


class EndedWorker(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """One has ended, with this wait status."""

    pid: int
    status: int


class ServerFailed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The fork server cannot serve."""

    reason: str
    fatal: bool = False


class ServerReady(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The environment's module is imported."""


ServerSays = ForkedWorker | EndedWorker | ServerFailed | ServerReady


def plain(context: ComponentContext) -> dict[str, Any]:
    """A context as msgpack can carry it."""
    converted: dict[str, Any] = msgspec.to_builtins(context, enc_hook=_as_text)
    return converted


def _as_text(value: Any) -> str:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} cannot be part of a context")


def _as_path(kind: type[Any], value: Any) -> Any:
    return Path(value) if kind is Path else value
