"""Finds the installed plugins and reads their manifests, each isolated from the others."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pluggy

from astraflow_core.component import API_VERSION, Command, Component, Kind
from astraflow_core.hookspecs import PROJECT, Lifecycle, Registration
from astraflow_core.installed.distributions import index
from astraflow_core.installed.entry_points import GROUP, RUNTIME, installed, name_and_version, scan
from astraflow_core.installed.manifest_problems import (
    COMMANDS,
    command_problems,
    component_problems,
)
from astraflow_core.suggestions import did_you_mean

DISABLE_VARIABLE = "ASTRAFLOW_DISABLE_PLUGINS"

_NAMED_LIKE_PLUGINS = ("astraflow_plugin_", "astraflow_contrib_")


class State(StrEnum):
    """The state of an installed plugin: only a healthy one can be used. Disabled and conflicting ones (another
    distribution has a plugin of that name) were never imported."""

    HEALTHY = "healthy"
    BROKEN = "broken"
    INCOMPATIBLE = "incompatible"
    DISABLED = "disabled"
    CONFLICTING = "conflicting"


@dataclass(frozen=True, slots=True)
class Plugin:
    """An installed plugin: its name is that of its entry point.

    ``problem`` says why it cannot be used (empty if it can) and ``error`` is the exception behind it, if
    there was one. ``api`` is the plugin API that it declares, if it declares one. ``hooks`` are
    the lifecycle hooks that the manifest implements, ``file`` the manifest's file (of a plugin that was
    not imported: the folder of its distribution). ``imported``: top-level modules that came with the manifest,
    ``import_s`` the processor time of that.
    """

    name: str
    manifest: str
    distribution: str
    version: str
    file: str
    state: State = State.HEALTHY
    problem: str = ""
    api: tuple[int, int] | None = None
    components: tuple[tuple[Kind, Component], ...] = ()
    hooks: tuple[str, ...] = ()
    commands: tuple[Command, ...] = ()
    imported: tuple[str, ...] = field(default=(), compare=False)
    import_s: float = field(default=0.0, compare=False)
    module: ModuleType | None = field(default=None, repr=False, compare=False)
    error: BaseException | None = field(default=None, repr=False, compare=False)
    metadata: metadata.Distribution | None = field(default=None, repr=False, compare=False)

    @property
    def healthy(self) -> bool:
        """Whether a run may name it."""
        return self.state is State.HEALTHY


class BadManifest(Exception):
    """A manifest that breaks the contract of plugins; the text lists how."""


class PluginManifest(NamedTuple):
    """What a manifest declares; ``hooks`` are the lifecycle hooks that it implements."""

    components: tuple[tuple[Kind, Component], ...]
    hooks: tuple[str, ...]
    commands: tuple[Command, ...]


class OtherApi(BadManifest):
    """A manifest written for a plugin API that this core does not speak."""

    def __init__(self, text: str, api: tuple[int, int]) -> None:
        self.api = api
        super().__init__(text)


def find_plugins(disable: Iterable[str] = (), only: Iterable[str] | None = None) -> list[Plugin]:
    """Every installed plugin in name order.

    Plugins named by ``disable`` or by the environment variable ``ASTRAFLOW_DISABLE_PLUGINS``
    (comma-separated), and all but those named by ``only``, are listed without being imported, except the runtime's.
    """
    barred = dict.fromkeys(disable, "[plugins] disable")
    for name in disabled_by_environment():
        barred.setdefault(name, DISABLE_VARIABLE)
    barred.pop(RUNTIME, None)
    allowed = None if only is None else frozenset([RUNTIME, *only])
    entries = scan(tuple(sys.path))
    owners = Counter(entry.name for entry, _ in entries)
    plugins = []
    for entry, distribution in entries:
        problem, state = "", State.CONFLICTING
        if entry.name in barred:
            problem, state = f"disabled by {barred[entry.name]}", State.DISABLED
        elif allowed is not None and entry.name not in allowed:
            problem, state = "not in [plugins] only", State.DISABLED
        elif owners[entry.name] > 1 and not _is_ours(distribution):
            names = sorted(name_and_version(d)[0] for e, d in entries if e.name == entry.name)
            problem = (
                f"{len(names)} distributions provide a plugin of this name: {', '.join(names)}; "
                "uninstall all but one"
            )
        if problem:
            plugins.append(_listed(entry, distribution, problem=problem, state=state))
        else:
            plugins.append(_loaded(entry, distribution))
    return _without_taken_commands(plugins)


def _without_taken_commands(plugins: list[Plugin]) -> list[Plugin]:
    """The same, where a plugin that declares a command of the runtime is broken: the command line finds the runtime's
    own commands without reading plugins."""
    taken = {c.name: p for p in plugins if p.name == RUNTIME and p.healthy for c in p.commands}
    checked = []
    for plugin in plugins:
        wrong = [] if plugin.name == RUNTIME else [c for c in plugin.commands if c.name in taken]
        if wrong:
            owner = taken[wrong[0].name]
            problem = f"command {wrong[0].name!r} is taken: it is one of {owner.distribution} {owner.version}"
            plugin = replace(plugin, state=State.BROKEN, problem=problem)
        checked.append(plugin)
    return checked


def _is_ours(distribution: metadata.Distribution) -> bool:
    """Whether it is published with the runtime: another plugin of the same name does not displace it."""
    return index().lists(name_and_version(distribution)[0])


def find_unregistered() -> list[Plugin]:
    """Installed distributions named like plugins, ``astraflow-plugin-*`` or ``astraflow-contrib-*``, or with an
    entry point in a group like ours, that have none in ours: they were built incorrectly and cannot be found.
    Their manifests are not imported."""
    found: dict[str, Plugin] = {}
    for distribution, points in (pair for folder in sys.path for pair in installed(folder)):
        alike = sorted({point.group for point in points if GROUP in point.group.lower()})
        if alike and GROUP not in alike:
            plugin = _unregistered(distribution, alike[0])
            found.setdefault(plugin.distribution, plugin)
    for folder in dict.fromkeys(sys.path):
        # By the names of their folders: to read the metadata of all that is installed takes longer.
        for file in sorted(Path(folder).glob("astraflow_*.dist-info")):
            distribution = metadata.Distribution.at(file)
            if file.name.startswith(_NAMED_LIKE_PLUGINS) and not any(
                GROUP in point.group.lower() for point in distribution.entry_points
            ):
                plugin = _unregistered(distribution, "")
                found.setdefault(plugin.distribution, plugin)
    return list(found.values())


def _unregistered(distribution: metadata.Distribution, group: str) -> Plugin:
    """``group``: in which it has an entry point; empty if it has none."""
    name, version = name_and_version(distribution)
    has = f"its entry point is in the group {group!r}" if group else "it has no entry point"
    return Plugin(
        name=next((p.name for p in distribution.entry_points if p.group == group), name),
        manifest="",
        distribution=name,
        version=version,
        file=str(distribution.locate_file("")),
        state=State.BROKEN,
        problem=f"{has}; plugins are found by [project.entry-points.{GROUP}]",
    )


def disabled_by_environment() -> list[str]:
    """The names in ``ASTRAFLOW_DISABLE_PLUGINS``."""
    names = (name.strip() for name in os.environ.get(DISABLE_VARIABLE, "").split(","))
    return [name for name in names if name]


def plugin_manager() -> pluggy.PluginManager:
    """A manager that knows the hooks and no plugin."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(Registration)
    manager.add_hookspecs(Lifecycle)
    return manager


def _listed(
    entry: metadata.EntryPoint, distribution: metadata.Distribution, **known: Any
) -> Plugin:
    known.setdefault("file", str(distribution.locate_file("")))
    name, version = name_and_version(distribution)
    return Plugin(
        name=entry.name,
        manifest=entry.value,
        distribution=name,
        version=version,
        metadata=distribution,
        **known,
    )


def _loaded(entry: metadata.EntryPoint, distribution: metadata.Distribution) -> Plugin:
    """Import one manifest; its problems affect this plugin only."""
    if entry.attr or entry.extras:
        problem = f"its entry point {entry.value!r} must name a module and nothing else"
        return _listed(entry, distribution, state=State.BROKEN, problem=problem)
    # Nothing is new if it was imported before; to look costs more than reading the manifest.
    before = None if entry.value in sys.modules else set(sys.modules)
    began = time.process_time()
    try:
        module = importlib.import_module(entry.value)
    except (Exception, SystemExit) as error:  # noqa: BLE001 (kept as the plugin's problem)
        problem = (
            f"its manifest {entry.value!r} cannot be imported: {type(error).__name__}: {error}"
        )
        return _listed(entry, distribution, state=State.BROKEN, problem=problem, error=error)
    known: dict[str, Any] = {"file": str(module.__file__), "module": module}
    known["import_s"] = time.process_time() - began
    if before is not None:
        known["imported"] = _top_level(sys.modules.keys() - before, entry.value)
    try:
        known["api"] = read_api(module)
        known |= read_manifest(entry.name, module)._asdict()
    except BadManifest as error:
        known |= {"state": State.BROKEN, "problem": str(error), "error": error.__cause__}
        if isinstance(error, OtherApi):
            known |= {"state": State.INCOMPATIBLE, "api": error.api}
    return _listed(entry, distribution, **known)


def _top_level(modules: Iterable[str], manifest: str) -> tuple[str, ...]:
    """Top-level modules that are neither Python's nor ours nor the manifest's own."""
    own = {manifest.partition(".")[0], "astraflow_core"}
    names = {name.partition(".")[0] for name in modules}
    return tuple(sorted(names - own - sys.stdlib_module_names))


def read_api(module: ModuleType) -> tuple[int, int]:
    """The plugin API that a manifest is written for, if this core implements it."""
    ours = ".".join(map(str, API_VERSION))
    api = getattr(module, "ASTRAFLOW_API", None)
    if not (isinstance(api, tuple) and len(api) == 2 and all(type(part) is int for part in api)):
        raise BadManifest(
            f"{module.__name__} does not declare its plugin API: add ASTRAFLOW_API = {API_VERSION} (found {api!r})"
        )
    major, minor = api
    if major != API_VERSION[0] or minor > API_VERSION[1]:
        older = (major, minor) < API_VERSION
        advice = "update the plugin" if older else "update astraflow-core"
        raise OtherApi(
            f"written for plugin API {major}.{minor}; this core speaks {ours}: {advice}",
            (major, minor),
        )
    return major, minor


def read_manifest(plugin: str, module: ModuleType) -> PluginManifest:
    """What a manifest declares: either all of it is valid or none of it is used."""
    manager = _reader()
    try:
        return _read(plugin, module, manager)
    finally:
        manager.unregister(name=plugin)


@lru_cache(maxsize=1)
def _reader() -> pluggy.PluginManager:
    """One manager for all manifests, with one registered at a time: registering the hooks costs more
    than reading a manifest."""
    return plugin_manager()


def _read(plugin: str, module: ModuleType, manager: pluggy.PluginManager) -> PluginManifest:
    known = {n for spec in (Registration, Lifecycle) for n in vars(spec) if n[0] != "_"}
    try:
        manager.register(module, name=plugin)
    except pluggy.PluginValidationError as error:
        raise BadManifest(" ".join(str(error).split())) from error
    problems = [
        f"unknown hook {name!r}{did_you_mean(name, known)}"
        for caller in manager.get_hookcallers(module) or ()
        for name in [caller.name]
        if name not in known and not all(impl.optionalhook for impl in caller.get_hookimpls())
    ]
    implemented = {caller.name for caller in manager.get_hookcallers(module) or ()}
    problems += [
        f"{name}() is not marked with @hookimpl"
        for name in sorted(known.intersection(vars(module)) - implemented)
    ]
    components: list[tuple[Kind, Component]] = []
    for kind in Kind:
        listed = _answer(kind.hook, "Component", implemented, manager, problems)
        problems += component_problems(kind, listed)
        components += [(kind, entry) for entry in listed]
    commands = _answer(COMMANDS, "Command", implemented, manager, problems)
    problems += command_problems(commands)
    if problems:
        raise BadManifest("; ".join(problems))
    lifecycle = tuple(sorted(implemented.intersection(vars(Lifecycle))))
    return PluginManifest(tuple(components), lifecycle, tuple(commands))


def _answer(
    hook: str, what: str, implemented: set[str], manager: pluggy.PluginManager, problems: list[str]
) -> list[Any]:
    """What the one registered manifest returns from a registration hook; nothing if it lacks the hook."""
    if hook not in implemented:
        return []
    try:
        answers = getattr(manager.hook, hook)()
        listed = list(answers[0]) if answers else None
    except (Exception, SystemExit) as error:
        raise BadManifest(f"{hook}() failed: {type(error).__name__}: {error}") from error
    if listed is None:
        problems.append(f"{hook}() returned None; expected a list of {what}")
    return listed or []
