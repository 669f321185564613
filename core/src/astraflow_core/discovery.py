"""Finds the installed plugins and reads their manifests, each isolated from the others."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from importlib import metadata
from types import ModuleType
from typing import Any

import pluggy

from astraflow_core.capabilities import CAPABILITIES, unknown_flags
from astraflow_core.component import API_VERSION, Component, Kind
from astraflow_core.hookspecs import PROJECT, Lifecycle, Registration
from astraflow_core.suggestions import did_you_mean

GROUP = "astraflow"
CORE = "core"
CORE_MANIFEST = "astraflow_core.builtin"
DISABLE_VARIABLE = "ASTRAFLOW_DISABLE_PLUGINS"

_FIELD = re.compile(r"^(Name|Version): *(.*?)\s*$", re.MULTILINE)
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


class State(StrEnum):
    """How an installed plugin is: only a healthy one can be used. Disabled and conflicting ones (another
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
    there was one. ``api`` is the plugin API that it is written for, as far as it says so. ``hooks`` are
    the lifecycle hooks that the manifest implements, ``file`` the manifest's file (of a plugin that was
    not imported: the folder of its distribution).
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
    module: ModuleType | None = field(default=None, repr=False, compare=False)
    error: BaseException | None = field(default=None, repr=False, compare=False)
    metadata: metadata.Distribution | None = field(default=None, repr=False, compare=False)

    @property
    def healthy(self) -> bool:
        """Whether a run may name it."""
        return self.state is State.HEALTHY


class BadManifest(Exception):
    """A manifest that breaks the contract of plugins; the text lists how."""


class OtherApi(BadManifest):
    """A manifest written for a plugin API that this core does not speak."""

    def __init__(self, text: str, api: tuple[int, int]) -> None:
        self.api = api
        super().__init__(text)


def find_plugins(disable: Iterable[str] = (), only: Iterable[str] | None = None) -> list[Plugin]:
    """Every installed plugin, the core's own first and the rest in name order.

    Plugins named by ``disable`` or by the environment variable ``ASTRAFLOW_DISABLE_PLUGINS``
    (comma-separated), and all but those named by ``only``, are listed without being imported.
    """
    barred = dict.fromkeys(disable, "[plugins] disable")
    for name in disabled_by_environment():
        barred.setdefault(name, DISABLE_VARIABLE)
    allowed = None if only is None else frozenset(only)
    entries = scan(tuple(sys.path))
    owners = Counter(entry.name for entry, _ in entries)
    plugins = [_core()]
    for entry, distribution in entries:
        problem, state = "", State.CONFLICTING
        if entry.name in barred:
            problem, state = f"disabled by {barred[entry.name]}", State.DISABLED
        elif allowed is not None and entry.name not in allowed:
            problem, state = "not in [plugins] only", State.DISABLED
        elif entry.name == CORE:
            problem = f"the plugin name {CORE!r} is taken by astraflow-core"
        elif owners[entry.name] > 1:
            names = sorted(name_and_version(d)[0] for e, d in entries if e.name == entry.name)
            problem = (
                f"{len(names)} distributions provide a plugin of this name: {', '.join(names)}; "
                "uninstall all but one"
            )
        if problem:
            plugins.append(_listed(entry, distribution, problem=problem, state=state))
        else:
            plugins.append(_loaded(entry, distribution))
    return plugins


def disabled_by_environment() -> list[str]:
    """The names in ``ASTRAFLOW_DISABLE_PLUGINS``."""
    names = (name.strip() for name in os.environ.get(DISABLE_VARIABLE, "").split(","))
    return [name for name in names if name]


@lru_cache(maxsize=4)
def scan(path: tuple[str, ...]) -> list[tuple[metadata.EntryPoint, metadata.Distribution]]:
    """Entry points of the group in name order, once per process and ``sys.path``.

    A distribution found twice counts where Python would import it from: first on the path.
    """
    found: dict[str, tuple[metadata.Distribution, list[metadata.EntryPoint]]] = {}
    for distribution in metadata.distributions(path=list(path)):
        entries = list(distribution.entry_points.select(group=GROUP))
        if entries:
            normal = re.sub(r"[-_.]+", "-", name_and_version(distribution)[0]).lower()
            found.setdefault(normal, (distribution, entries))
    pairs = [(entry, distribution) for distribution, entries in found.values() for entry in entries]
    return sorted(pairs, key=lambda pair: (pair[0].name, name_and_version(pair[1])))


def name_and_version(distribution: metadata.Distribution) -> tuple[str, str]:
    """Name and version of a distribution, also of one whose metadata a broken removal left behind."""
    # `distribution.metadata` would parse the whole description with the email package, each time.
    text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
    fields = dict(_FIELD.findall(text.partition("\n\n")[0]))
    return fields.get("Name", "unnamed"), fields.get("Version", "unknown")


def plugin_manager() -> pluggy.PluginManager:
    """A manager that knows the hooks and no plugin."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(Registration)
    manager.add_hookspecs(Lifecycle)
    return manager


def _core() -> Plugin:
    from astraflow_core import __version__

    module = importlib.import_module(CORE_MANIFEST)
    components, hooks = read_manifest(CORE, module)
    return Plugin(
        name=CORE,
        manifest=CORE_MANIFEST,
        distribution="astraflow-core",
        version=__version__,
        file=str(module.__file__),
        api=API_VERSION,
        components=components,
        hooks=hooks,
        module=module,
    )


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
    """Import one manifest; whatever is wrong with it stays with this plugin."""
    if entry.attr or entry.extras:
        problem = f"its entry point {entry.value!r} must name a module and nothing else"
        return _listed(entry, distribution, state=State.BROKEN, problem=problem)
    try:
        module = importlib.import_module(entry.value)
    except (Exception, SystemExit) as error:  # noqa: BLE001 (kept as the plugin's problem)
        problem = (
            f"its manifest {entry.value!r} cannot be imported: {type(error).__name__}: {error}"
        )
        return _listed(entry, distribution, state=State.BROKEN, problem=problem, error=error)
    known: dict[str, Any] = {"file": str(module.__file__), "module": module}
    try:
        known["api"] = read_api(module)
        known["components"], known["hooks"] = read_manifest(entry.name, module)
    except BadManifest as error:
        known |= {"state": State.BROKEN, "problem": str(error), "error": error.__cause__}
        if isinstance(error, OtherApi):
            known |= {"state": State.INCOMPATIBLE, "api": error.api}
    return _listed(entry, distribution, **known)


def read_api(module: ModuleType) -> tuple[int, int]:
    """The plugin API that a manifest is written for, if this core speaks it."""
    ours = ".".join(map(str, API_VERSION))
    api = getattr(module, "ASTRAFLOW_API", None)
    if not (isinstance(api, tuple) and len(api) == 2 and all(type(part) is int for part in api)):
        raise BadManifest(
            f"{module.__name__} does not say which plugin API it is written for: "
            f"add ASTRAFLOW_API = {API_VERSION} (found {api!r})"
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


def read_manifest(
    plugin: str, module: ModuleType
) -> tuple[tuple[tuple[Kind, Component], ...], tuple[str, ...]]:
    """The components and the lifecycle hooks of a manifest; all of it is sound or none is used."""
    manager = _reader()
    try:
        return _read(plugin, module, manager)
    finally:
        manager.unregister(name=plugin)


@lru_cache(maxsize=1)
def _reader() -> pluggy.PluginManager:
    """One manager for all manifests, of which it knows one at a time: telling it the hooks costs more than
    reading a manifest."""
    return plugin_manager()


def _read(
    plugin: str, module: ModuleType, manager: pluggy.PluginManager
) -> tuple[tuple[tuple[Kind, Component], ...], tuple[str, ...]]:
    known = {
        name
        for spec in (Registration, Lifecycle)
        for name in vars(spec)
        if not name.startswith("_")
    }
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
        if kind.hook not in implemented:
            continue
        try:
            answers = getattr(manager.hook, kind.hook)()
            listed = list(answers[0]) if answers else None
        except (Exception, SystemExit) as error:
            raise BadManifest(f"{kind.hook}() failed: {type(error).__name__}: {error}") from error
        if listed is None:
            problems.append(f"{kind.hook}() returned None; expected a list of Component")
            continue
        problems += component_problems(kind, listed)
        components += [(kind, entry) for entry in listed]
    if problems:
        raise BadManifest("; ".join(problems))
    lifecycle = tuple(sorted(implemented.intersection(vars(Lifecycle))))
    return tuple(components), lifecycle


def component_problems(kind: Kind, listed: Sequence[object]) -> list[str]:
    """What is wrong with the components that a registration hook returned."""
    problems = []
    seen: set[str] = set()
    for entry in listed:
        if not isinstance(entry, Component):
            problems.append(f"{kind.hook}() returned {entry!r}; expected a Component")
            continue
        name: object = entry.name
        flags: object = entry.capabilities
        who = f"{kind} {name!r}"
        if not (isinstance(name, str) and _NAME.fullmatch(name)):
            problems.append(f"{who}: a name is lower-case letters, digits and underscores")
            continue
        if name in seen:
            problems.append(f"{who} is provided twice")
        seen.add(name)
        for label, reference in (("target", entry.target), ("config", entry.config)):
            if label == "config" and reference is None:
                continue
            if not (isinstance(reference, str) and _REFERENCE.fullmatch(reference)):
                problems.append(
                    f"{who}: {label} {reference!r} is not of the form 'module:attribute'"
                )
        if not isinstance(flags, frozenset):
            problems.append(f"{who}: capabilities must be a frozenset, not {flags!r}")
            continue
        problems += [
            f"{who}: unknown capability {flag!r}{did_you_mean(str(flag), CAPABILITIES[kind])}"
            for flag in unknown_flags(kind, flags)
        ]
    return problems
