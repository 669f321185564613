"""Turns the model references of a run into local folders, before any process of it starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from astraflow_core.config.environments import cache_folder
from astraflow_core.config.models import FrozenEngineTable, PolicyTable, RunConfig
from astraflow_core.hooks import Hooks

T = TypeVar("T", PolicyTable, FrozenEngineTable)


def resolve_models(config: RunConfig, hooks: Hooks) -> RunConfig:
    """The config with every ``model`` of a policy or a frozen engine a local Hugging Face folder; each
    reference is resolved once. Raises :class:`astraflow_core.errors.PreflightError` naming what is missing."""
    folders: dict[str, str] = {}
    for served in config.served.values():
        if served.model not in folders:
            found = hooks.resolve_model(served.model, config.run.seed, cache_folder())
            folders[served.model] = str(found)

    def resolved(tables: Mapping[str, T]) -> dict[str, T]:
        return {
            name: table.model_copy(update={"model": folders[table.model]})
            for name, table in tables.items()
        }

    return config.model_copy(
        update={"policies": resolved(config.policies), "engines": resolved(config.engines)}
    )
