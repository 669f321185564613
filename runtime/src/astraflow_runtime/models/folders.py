"""Turns the model references of a run into local folders and checks them, before any process of it starts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from astraflow_core.config.environments import cache_folder
from astraflow_core.config.models import FrozenEngineTable, PolicyTable, RunConfig
from astraflow_core.errors import PreflightError
from astraflow_core.types import ResolvedModel
from astraflow_runtime.models.files import check_files
from astraflow_runtime.models.resolver import ModelResolver
from astraflow_wire.host.disk import replace_file

FILE = "models.json"
"""File in the directory of a run: folder → the reference from which it can be restored."""
T = TypeVar("T", PolicyTable, FrozenEngineTable)


def resolve_models(config: RunConfig, resolver: ModelResolver) -> RunConfig:
    """The config with every ``model`` of a policy or a frozen engine a local Hugging Face folder; each
    reference is resolved once. Raises :class:`astraflow_core.errors.PreflightError` naming what is missing."""
    return with_folders(config, find_models(config, resolver))


def find_models(config: RunConfig, resolver: ModelResolver) -> dict[str, ResolvedModel]:
    """Reference → resolved model, for every model of a config."""
    found: dict[str, ResolvedModel] = {}
    for served in config.served.values():
        if served.model not in found:
            found[served.model] = resolver.pinned_model(
                served.model, config.run.seed, cache_folder()
            )
    return found


def with_folders(config: RunConfig, found: Mapping[str, ResolvedModel]) -> RunConfig:
    """The config with the folders of the resolved models."""

    def resolved(tables: Mapping[str, T]) -> dict[str, T]:
        return {
            name: table.model_copy(update={"model": str(found[table.model].folder)})
            for name, table in tables.items()
        }

    return config.model_copy(
        update={"policies": resolved(config.policies), "engines": resolved(config.engines)}
    )


def write_models(directory: Path, found: Mapping[str, ResolvedModel]) -> None:
    """Record in the directory of a run the references of its models, except plain folders."""
    pinned = {
        str(m.folder): m.pinned for name, m in found.items() if m.pinned != name or ":" in name
    }
    if pinned:
        replace_file(directory / FILE, json.dumps(pinned, indent=2) + "\n")


def bring_back(config: RunConfig, directory: Path, resolver: ModelResolver) -> None:
    """Resolve the models of a run again whose folder is gone, for example after a cache was
    cleared. Raises :class:`PreflightError` if that gives another folder than the run has.
    """
    file = directory / FILE
    try:
        pinned = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    except ValueError as error:
        raise PreflightError(
            f"{file} is damaged ({error}); it is needed only to download models again: remove it if the models "
            "still exist"
        ) from error
    for folder in {served.model for served in config.served.values()}:
        if folder in pinned and not Path(folder).exists():
            again = resolver.resolve_model(pinned[folder], config.run.seed, cache_folder())
            if str(again) != folder:
                raise PreflightError(
                    f"the run started with {pinned[folder]!r} in {folder!r}, which no longer exists; it is now in "
                    f"{str(again)!r} : set the "
                    "cache that the run started with (HF_HOME, ASTRAFLOW_CACHE), or link one folder to the other"
                )


def check_models(config: RunConfig) -> None:
    """Check the files of every model of a config whose models are local folders, before any process
    starts. Raises :class:`astraflow_core.errors.PreflightError` with key and file."""
    for name, served in config.served.items():
        root = "engines" if served.frozen else "policies"
        check_files(Path(served.model), f"{root}.{name}.model", weights=not served.frozen)
