"""The status of plugins and components: usable or not, why, and the fix. `plugins why` prints it."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING, Any

from astraflow_core.capabilities import pairing_problems
from astraflow_core.component import API_VERSION, Kind, load_attribute
from astraflow_core.config.environments import ATTRIBUTE
from astraflow_core.errors import PluginError
from astraflow_core.installed.discovery import State, find_unregistered
from astraflow_core.installed.origins import how_to_add
from astraflow_core.installed.requirements import (
    RUNTIME,
    missing_runtime,
    runtime_requirements,
)
from astraflow_core.suggestions import near
from astraflow_runtime.cli.installation.check_report import facts_of
from astraflow_runtime.cli.installation.clashes import clashes
from astraflow_runtime.cli.installation.docstrings import docstring_of
from astraflow_runtime.config.references import unresolved

if TYPE_CHECKING:
    from astraflow_core.catalog import Catalog, Selected
    from astraflow_core.installed.discovery import Plugin

AUTHORS = "update {who} (pip install --upgrade {who}), or report it to its authors; if it is your own, fix the problem"
_MOST_MODULES = 8
_SLOW_IMPORT_S = 0.2
_FRAMES = 3
_ROLES = (Kind.ENGINE, Kind.TRAINER)
_NAMED_AS = {
    Kind.WORKFLOW: '[workflow] use = "{}"',
    Kind.ENVIRONMENT: '[workflow.environment] use = "{}", in a workflow that plays one',
    Kind.REWARD: '[reward] use = "{}"',
    Kind.PROMPT_SOURCE: '[prompts] use = "{}"',
    Kind.LAUNCHER: '[launcher] use = "{}"',
    Kind.TRACKER: '[trackers.NAME] use = "{}"',
    Kind.DATA_POLICY: 'data = [{{ use = "{}" }}] in [policies.NAME] or [prompts]; [balance] use for one with capability scale',
}


@dataclass(frozen=True)
class ComponentReport:
    """A plugin or component that a name may mean. ``state`` is that of a plugin (:class:`State`),
    or of a component: ``healthy``, ``ambiguous``, ``incomplete`` (its runtime extra is not
    installed), ``broken`` or ``unpackaged``. ``fix`` is what to do, empty if nothing;
    ``traceback_summary`` the end of the traceback of a problem; ``facts`` further details."""

    subject: str
    state: str
    verdict: str
    fix: str = ""
    traceback_summary: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)


def component_reports(catalog: Catalog, name: str) -> list[ComponentReport]:
    """Everything that ``name`` may mean: a plugin, its distribution or one of its commands,
    ``component``, ``kind/component``, ``plugin/component`` or ``[kind/]module:attr``. Raises
    :class:`PluginError` with the nearest names if it means nothing."""
    kind, slash, rest = name.partition("/")
    wanted = Kind(kind) if slash and kind in list(Kind) else None
    rest = rest if wanted else name
    if ":" in rest:
        return [_unpackaged(catalog, wanted, rest)]
    found = [
        entry
        for entry in catalog.components(wanted)
        if rest in (entry.component.name, entry.qualified)
    ]
    told = [_component(catalog, entry, rest) for entry in found]
    if wanted is None:
        covered = {entry.plugin for entry in found}
        told += [
            of_plugin(plugin)
            for plugin in (*catalog.plugins, *find_unregistered())
            if rest in (plugin.name, plugin.distribution, *(c.name for c in plugin.commands))
            and not (plugin.healthy and plugin.name in covered)
        ]
    if not told:
        raise _unknown(catalog, name, wanted, rest)
    return told


def of_plugin(plugin: Plugin) -> ComponentReport:
    """The report on a plugin, without further imports."""
    missing = missing_runtime(plugin.metadata)
    who = plugin.distribution
    fix = ""
    match plugin.state:
        case State.DISABLED:
            verdict = f"not imported: {plugin.problem}"
            _, disabled, by = plugin.problem.partition("disabled by ")
            fix = f"if you want it, take {plugin.name!r} out of {by}"
            if not disabled:
                fix = f"if you want it, add {plugin.name!r} to [plugins] only"
        case State.CONFLICTING:
            verdict = f"not imported: {plugin.problem}"
            fix = f"pip uninstall {who}, or uninstall the other distribution"
        case State.INCOMPATIBLE:
            verdict = f"cannot be used: {plugin.problem}"
            ours = "astraflow-core" if (plugin.api or API_VERSION) > API_VERSION else who
            fix = f"pip install --upgrade {ours}"
        case State.BROKEN:
            verdict = f"cannot be used: {plugin.problem}"
            fix = remedy(plugin)
        case _ if missing:
            verdict = f"listed, but missing packages: {', '.join(missing)}"
            fix = _install(plugin)
        case _ if plugin.commands and not plugin.components:
            verdict = f"`astraflow {plugin.commands[0].name}` can be called"
        case _:
            verdict = "available to any run that names it"
    return ComponentReport(
        f"plugin {plugin.name}",
        "incomplete" if plugin.healthy and missing else str(plugin.state),
        verdict,
        fix,
        traceback_summary(plugin.error),
        _of_distribution(plugin) | _provided(plugin),
    )


def remedy(plugin: Plugin) -> str:
    """The fix for a plugin that cannot be used: a reinstallation if an import is missing; else only
    its authors can fix it.
    """
    who = plugin.distribution
    if isinstance(plugin.error, ImportError):
        return f"pip install --upgrade --force-reinstall {who}, or pip uninstall {who}"
    return f"{AUTHORS.format(who=who)}; until then: pip uninstall {who}"


def slow_manifest(plugin: Plugin) -> str:
    """What a manifest imports although it should contain strings only; empty if this does not slow
    commands noticeably.
    """
    if not plugin.imported or plugin.import_s < _SLOW_IMPORT_S:
        return ""
    return (
        f"its manifest {plugin.manifest!r} takes {plugin.import_s:.1f} s of every command: with it come "
        f"{', '.join(plugin.imported[:_MOST_MODULES])}; what it imports belongs into the component's module"
    )


def _component(catalog: Catalog, entry: Selected, asked: str) -> ComponentReport:
    component, kind = entry.component, entry.kind
    plugin = next(p for p in catalog.plugins if p.name == entry.plugin)
    rivals = [
        other.qualified
        for other in catalog.components(kind)
        if other.component.name == component.name and other.plugin != entry.plugin
    ]
    meant = catalog.meaning(kind, component.name)
    use = component.name if meant == entry.qualified else entry.qualified
    state, fix = "healthy", ""
    chain: tuple[str, ...] = ()
    verdict = f"available to any run that names it: {named_as(kind, use)}"
    problem, keys = _examined(catalog, entry)
    missing = missing_runtime(entry.metadata)
    if missing:
        state, fix = "incomplete", _install(plugin)
        verdict = f"listed, but missing packages: {', '.join(missing)}"
    elif problem is not None:
        state, chain = "broken", traceback_summary(problem.__cause__)
        verdict = f"cannot be used: {problem}"
        fix = AUTHORS.format(who=entry.distribution)
        # a reinstallation does not add a target that the package lacks
        if isinstance(problem.__cause__, ImportError) and not unresolved(component.target):
            fix = f"pip install --upgrade --force-reinstall {entry.distribution}"
    elif rivals and asked == component.name and catalog.meaning(kind, asked) != entry.qualified:
        state, fix = "ambiguous", named_as(kind, use)
        verdict = (
            f"ambiguous: {kind} {component.name!r} is also {' and '.join(map(repr, rivals))}; "
            + (f"the short name means {meant!r}" if meant else "a run must use the full name")
        )
    conflicts = clashes(entry.metadata)
    if conflicts and kind in _ROLES:  # pip would break the other distributions
        fix = f'{_environment(plugin)}, and {kind} = {{ use = "{use}", python = "env:{plugin.name}" }}'
    facts = _of_distribution(plugin) | {
        "target": component.target,
        "summary": component.summary,
        "capabilities": sorted(component.capabilities),
        "keys": keys,
        "also_provided_as": rivals,
        "conflicts": [*conflicts, *_without_partner(catalog, entry)],
        "about": docstring_of(component.target),
    }
    return ComponentReport(f"{kind} {entry.qualified}", state, verdict, fix, chain, facts)


def _unpackaged(catalog: Catalog, kind: Kind | None, use: str) -> ComponentReport:
    subject = f"{kind} {use}" if kind else use
    facts: dict[str, Any] = {"provided_by": _home(catalog, use)}
    fits, problems = [], []
    try:
        load_attribute(use)
        for each in [kind] if kind else list(Kind):
            try:
                catalog.select(each, use).config_model()
                fits.append(each)
            except PluginError as error:
                problems.append(error)
        if not fits:
            if kind:
                raise problems[0]
            raise PluginError(_no_component(use, str(problems[0]))) from problems[0].__cause__
    except PluginError as error:
        return ComponentReport(
            subject,
            "broken",
            f"cannot be used: {error}",
            "",
            traceback_summary(error.__cause__),
            facts,
        )
    if len(fits) < len(Kind):
        facts["fits"] = [named_as(each, use) for each in fits]
    facts["capabilities"] = sorted(catalog.flags(fits[0], use))
    facts["about"] = docstring_of(use)
    packaged = [e for e in catalog.components() if e.component.target == use]
    if packaged:
        first = packaged[0]
        facts["also_provided_as"] = [f"{e.kind} {e.qualified}" for e in packaged]
        verdict = "available without a package, but without the keys and capabilities of its plugin's manifest"
        fix = named_as(first.kind, first.qualified)
        return ComponentReport(subject, "unpackaged", verdict, fix, (), facts)
    verdict = "available to a run that names it; the run's header marks it as unpackaged"
    return ComponentReport(subject, "unpackaged", verdict, "", (), facts)


def _no_component(use: str, problem: str) -> str:
    """The report on a ``use`` that no kind can resolve; ``problem`` is that of the first kind
    tried.
    """
    first, rest = f"{next(iter(Kind))} {use!r}", f"{use!r}"
    return problem.replace(first, rest, 1)


def named_as(kind: Kind, use: str) -> str:
    """How a run's file names a component."""
    return _NAMED_AS.get(kind, f'{kind} = {{{{ use = "{{}}" }}}} in [policies.NAME]').format(use)


def traceback_summary(error: BaseException | None) -> tuple[str, ...]:
    """The last frames of a traceback outside of the import machinery, and the exception."""
    if error is None:
        return ()
    from astraflow_engine_host.failures import is_ours

    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen")
        and "/importlib/" not in frame.filename
        and not is_ours(frame.filename)
    ]
    places = [f"{f.filename}:{f.lineno} in {f.name}: {f.line}" for f in frames[-_FRAMES:]]
    last = "".join(traceback.format_exception_only(error)).strip().splitlines()
    return (*places, *last)


def _examined(catalog: Catalog, entry: Selected) -> tuple[PluginError | None, list[str]]:
    """The import error of a component, if any, and a line for each of its keys."""
    from astraflow_runtime.config.explain import component_keys

    keys: list[str] = []
    try:
        prefix = f"{entry.kind}/{entry.qualified}."
        known = component_keys(catalog, entry.kind, entry.qualified)
        keys = [key.line().removeprefix(prefix) for key in known]
        entry.load(entry.component.target)
    except PluginError as error:
        return error, keys
    return None, keys


def _without_partner(catalog: Catalog, entry: Selected) -> Iterator[str]:
    """Pairings that no installed component could satisfy."""
    for partner in Kind:
        others = [e for e in catalog.components(partner) if e.kind is not entry.kind]
        failed = [
            pairing_problems(
                str(entry.kind), entry.component.name, entry.component.capabilities,
                str(partner), other.component.name, other.component.capabilities,
            )
            for other in others
        ]  # fmt: skip
        if failed and all(failed):
            yield f"{failed[0][0]} (no installed {partner} fits)"


def _of_distribution(plugin: Plugin) -> dict[str, Any]:
    return {
        "plugin": plugin.name,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "entry_point": f"{plugin.name} = {plugin.manifest}",
        "file": plugin.file,
        "plugin_api": ".".join(map(str, plugin.api)) if plugin.api else None,
        "core_api": ".".join(map(str, API_VERSION)),
        "runtime": _runtime(plugin),
        **facts_of(plugin),
    }


def _runtime(plugin: Plugin) -> str:
    """The requirements of the ``[runtime]`` extra: the installed versions, or what is missing."""
    if missing := missing_runtime(plugin.metadata):
        return f"lacks {', '.join(missing)}; {_install(plugin)}"
    wanted = runtime_requirements(plugin.metadata) if plugin.metadata else []
    has = [f"{each.name} {metadata.version(each.name)}" for each in wanted]
    return ", ".join(has) or "no missing packages"


def _provided(plugin: Plugin) -> dict[str, Any]:
    return {
        "provides": [
            *(f"{kind} {c.name}: {c.summary}" for kind, c in plugin.components),
            *(f"command {c.name}: {c.summary}" for c in plugin.commands),
        ],
        "hooks": list(plugin.hooks),
        "conflicts": clashes(plugin.metadata),
    }


def _home(catalog: Catalog, use: str) -> str:
    top = use.partition(":")[0].partition(".")[0]
    for plugin in catalog.plugins:  # an editable installation does not list its packages
        if plugin.manifest.partition(".")[0] == top:
            return f"{plugin.distribution} {plugin.version}"
    owners = sorted(set(metadata.packages_distributions().get(top, [])))
    return ", ".join(f"{owner} {metadata.version(owner)}" for owner in owners) or "no distribution"


def _install(plugin: Plugin) -> str:
    if getattr(plugin.module, ATTRIBUTE, None) is not None:
        return f"{_environment(plugin)}, and python = 'env:{plugin.name}' in the role's table"
    assert plugin.metadata is not None  # a part of it is missing
    return how_to_add(RUNTIME, plugin.metadata)


def _environment(plugin: Plugin) -> str:
    return f"astraflow env create {plugin.name} --plugin {plugin.name}"


def _unknown(catalog: Catalog, name: str, kind: Kind | None, use: str) -> PluginError:
    entries = list(catalog.components())
    elsewhere = [f"{e.kind}/{e.component.name}" for e in entries if e.component.name == use]
    known = [e.component.name for e in (catalog.components(kind) if kind else entries)]
    known += [e.qualified for e in entries] + [str(k) for k in Kind]
    if kind is None:
        known += [plugin.name for plugin in catalog.plugins]
    likely = elsewhere or near(use, known)
    what = f"{kind} {use!r}" if kind else f"plugin or component {name!r}"
    parts = [f"no {what} is installed"]
    if kind is None and use in list(Kind):
        there = ", ".join(e.component.name for e in catalog.components(Kind(use))) or "none"
        parts.append(f"it is a kind; installed components of that kind: {there}")
        parts.append(f"`astraflow plugins why {use}/NAME` explains one")
    elif likely:
        parts.append(f"did you mean {' or '.join(map(repr, likely))}?")
    unread = [p for p in catalog.plugins if not p.healthy]
    if unread:
        listed = ", ".join(f"{p.name!r} ({p.state})" for p in unread)
        parts.append(f"these plugins could not be read, so their components are unknown: {listed}")
    parts.append("`astraflow plugins` lists what is installed")
    return PluginError("; ".join(parts).replace("?; ", "? "))
