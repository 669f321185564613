"""What a run consists of: its distributions by role, its own modules, and the files that its config names."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel

from astraflow_core.component import Kind
from astraflow_core.config.load import LoadedConfig
from astraflow_core.errors import UserError
from astraflow_core.installed.requirements import RUNTIME, all_requirements, applies

SERVICES, ENGINE = "services", "engine"
"""Roles: the dataflow, the trainers and RaaS; and a host of engines alone."""
_PREFIX = "astraflow-"
_OF_SERVICES = ("astraflow-runtime",)
_OF_ENGINES = ("astraflow-engine-host",)
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):")
_SEPARATORS = re.compile(r"[-_.]+")


@dataclass(frozen=True)
class RoleContents:
    """``ours``: distributions that come as wheels. ``pins``: third-party requirements, ``"name==version"``."""

    ours: dict[str, metadata.Distribution]
    pins: tuple[str, ...]


@dataclass(frozen=True)
class RunContents:
    """``files``: path relative to the config's folder → file. ``notes``: what the hosts have to provide themselves."""

    roles: dict[str, RoleContents]
    files: dict[str, Path]
    notes: tuple[str, ...] = field(default=())


def normal(name: str) -> str:
    """A name of a distribution in its normalized form."""
    return _SEPARATORS.sub("-", name).lower()


def contents_of(loaded: LoadedConfig, config_file: Path, with_models: bool) -> RunContents:
    """Everything of a run but the built wheels. Raises :class:`UserError` for what cannot be packed."""
    folder = config_file.absolute().parent
    notes: list[str] = []
    named, own = _components(loaded)
    files: dict[str, Path] = {}
    for origin in {str(config_file), *loaded.origins.values()}:
        if (path := Path(origin)).is_file():
            _add(files, path.absolute(), folder, f"the config file {origin}")
    for target in own:
        for path in _module_files(target):
            _add(files, path, folder, f"use = {target!r}")
    for where, path in _paths(loaded):
        if path.is_relative_to(folder) and path.exists():
            _add(files, path, folder, where)
        elif path.exists():
            notes.append(f"{where}: {path} is outside {folder}: each host needs it at this path")
    for name, table in (*loaded.config.policies.items(), *loaded.config.engines.items()):
        path = Path(str(getattr(table, "model", "")))
        if path.is_dir() and path.is_absolute():
            if with_models:
                _add(files, path, folder, f"the model of {name}")
            else:
                notes.append(
                    f"the model of {name}, {path}, is not packed: each host needs it there, or pack --with-models"
                )
        python = getattr(getattr(table, "engine", table), "python", None)
        if python:
            notes.append(
                f"the engine of {name} has a separate interpreter, {python}: create it on its hosts"
            )
    services = set(named) | set(_OF_SERVICES)
    engines = {n for n, kinds in named.items() if kinds & {Kind.ENGINE, Kind.TRANSPORT}}
    roles = {
        SERVICES: _closed(services, named.keys()),
        ENGINE: _closed(engines | set(_OF_ENGINES), engines),
    }
    return RunContents(roles, files, tuple(dict.fromkeys(notes)))


def _components(loaded: LoadedConfig) -> tuple[dict[str, set[Kind]], list[str]]:
    """The distributions that the config names, and its targets that none provides."""
    named: dict[str, set[Kind]] = {}
    own = [loaded.config.rollouts.redact] if loaded.config.rollouts.redact else []
    for selected, _ in loaded.components.values():
        distribution = selected.distribution
        distribution = distribution or _owner(selected.component.target)
        if distribution:
            named.setdefault(normal(distribution), set()).add(selected.kind)
        else:
            own.append(selected.component.target)
    launcher = loaded.catalog.select(Kind.LAUNCHER, loaded.config.launcher.use)
    plugins = [loaded.catalog.plugin(name).distribution for name in loaded.config.plugins.enable]
    for distribution in (launcher.distribution, *plugins, *_asked_by_hook(loaded)):
        if distribution:
            named.setdefault(normal(distribution), set())
    return named, own


def _asked_by_hook(loaded: LoadedConfig) -> Iterator[str]:
    """The distributions that turn references of models into folders, by the scheme if one is named after it, and those
    that choose transports."""
    config = loaded.config
    tables = (*config.policies.values(), *config.engines.values())
    models = (str(getattr(table, "model", "")) for table in tables)
    schemes = {found[1] for model in models if (found := _SCHEME.match(model))}
    healthy = [plugin for plugin in loaded.catalog.plugins if plugin.healthy]
    resolvers = [plugin for plugin in healthy if "astraflow_resolve_model" in plugin.hooks]
    for scheme in schemes:
        named = [plugin for plugin in resolvers if plugin.name.startswith(scheme)]
        yield from (plugin.distribution for plugin in named or resolvers)
    yield from (p.distribution for p in healthy if "astraflow_choose_transport" in p.hooks)


@cache
def _distributions() -> Mapping[str, list[str]]:
    """Top-level package → the distributions that have it; to find out takes as long as all else that ``pack`` does."""
    return metadata.packages_distributions()


def _owner(target: str) -> str:
    """The distribution that the module of ``"module:attr"`` belongs to, also if it is installed from a folder; or nothing."""
    package = target.partition(":")[0].partition(".")[0]
    if found := _distributions().get(package):
        return found[0]
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return ""
    for distribution in metadata.distributions():
        folder = source_folder(distribution)
        if folder is not None and Path(spec.origin).is_relative_to(folder):
            return str(distribution.metadata["Name"])
    return ""


def source_folder(distribution: metadata.Distribution) -> Path | None:
    """The folder that a distribution was installed from; ``None`` for one from an index."""
    text = distribution.read_text("direct_url.json")
    if text is None:
        return None
    origin: dict[str, Any] = json.loads(text)
    return Path(unquote(urlsplit(str(origin["url"])).path)) if "dir_info" in origin else None


def _closed(roots: Iterable[str], with_runtime: Iterable[str]) -> RoleContents:
    """What the roots need, directly or not, as it is installed here; ``with_runtime``: also their ``[runtime]`` extra."""
    waiting = [
        (name, extra)
        for name in roots
        for extra in ("", RUNTIME)
        if not extra or name in with_runtime
    ]
    seen: set[tuple[str, str]] = set()
    ours: dict[str, metadata.Distribution] = {}
    pins: dict[str, str] = {}
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # an extra that is not installed here, which this run does not use
        if name.startswith(_PREFIX):
            ours[name] = found
        else:
            pins[name] = f"{name}=={found.version}"
        for requirement in all_requirements(found):
            if applies(requirement, extra):
                waiting += [(normal(requirement.name), e) for e in ("", *requirement.extras)]
    return RoleContents(dict(sorted(ours.items())), tuple(pins[name] for name in sorted(pins)))


def _module_files(target: str) -> Iterator[Path]:
    """The module of ``"module:attr"`` that no distribution has: a file, or its whole package."""
    top = target.partition(":")[0].partition(".")[0]
    spec = importlib.util.find_spec(top)
    if spec is None or spec.origin is None:
        raise UserError(
            f"use = {target!r}: module {top!r} is not a file; make a distribution of it, or put it next to the config"
        )
    origin = Path(spec.origin).resolve()
    yield origin.parent if origin.name == "__init__.py" else origin


def _paths(loaded: LoadedConfig) -> Iterator[tuple[str, Path]]:
    """The absolute paths in the keys of components, and what names them."""
    for place, (_, keys) in sorted(loaded.components.items()):
        if keys is not None:
            for name, value in _values(keys):
                if isinstance(value, Path) and value.is_absolute():
                    yield f"{place}.{name}", value


def _values(keys: BaseModel) -> Iterator[tuple[str, Any]]:
    for name, value in keys:
        nested = (
            value.values()
            if isinstance(value, Mapping)
            else value
            if isinstance(value, list | tuple)
            else [value]
        )
        for each in nested:
            if isinstance(each, BaseModel):
                yield from ((f"{name}.{inner}", found) for inner, found in _values(each))
            else:
                yield name, each


def _add(files: dict[str, Path], path: Path, folder: Path, who: str) -> None:
    if not path.is_relative_to(folder):
        if not path.resolve().is_relative_to(folder.resolve()):
            raise UserError(
                f"{who}: {path} is outside {folder}, the folder of the config; move it there to pack it"
            )
        path = folder / path.resolve().relative_to(folder.resolve())
    found = sorted(path.rglob("*")) if path.is_dir() else [path]
    for file in found:
        relative = file.relative_to(folder)
        if file.is_file() and "__pycache__" not in relative.parts:
            files[relative.as_posix()] = file
