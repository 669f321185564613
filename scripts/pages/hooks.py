"""docs/hooks.md: every hook, and what components may declare."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator

from astraflow_core.capabilities import CAPABILITIES, PAIRINGS
from astraflow_core.component import API_VERSION, Kind
from astraflow_core.hookspecs import PROJECT, Lifecycle, Registration
from astraflow_core.installed.manifest_problems import COMMANDS
from pages.hook_docs import HookDoc, example_of
from pages.markdown import GENERATED, code, codes, page, prose, table
from pages.workspace_catalog import catalog, home, providers, title


def hooks() -> str:
    """The page of hooks and capabilities."""
    return page(
        "# Hooks and capabilities",
        GENERATED,
        f"""
A plugin is a package with an entry point in the group `astraflow`, whose value names a *manifest*: a
module with `ASTRAFLOW_API = {API_VERSION}` and functions marked `@hookimpl` from
`astraflow_core.hookspecs`. It imports nothing but `astraflow_core`. An implementation may leave out
arguments that it does not use.

{_rules()}

| call | meaning |
|---|---|
| registration | asked once per process; returns what the plugin provides |
| lifecycle | every active plugin is called |
| first result | plugins are asked in turn until one answers other than `None` |
| wrapper | a generator around the core's own implementation, `@hookimpl(wrapper=True)` |
""",
        "## Registration",
        HookDoc.of(Registration).text,
        HookDoc.of(Registration).listed(),
        *(part for name in _names(Registration) for part in _registration(name)),
        "## Lifecycle",
        HookDoc.of(Lifecycle).text,
        *(part for name in _names(Lifecycle) for part in _lifecycle(name)),
        "## Capabilities",
        "What a component may declare. The sets are closed: an unknown flag makes a plugin unusable. Flags "
        "open the conformance tests that hold a component to them, and pair components before a run starts.",
        *(part for kind in Kind for part in _capabilities(kind)),
        "### Pairing",
        "Checked for every policy of a run before anything starts.",
        table(
            ("a", "that declares", "needs of its", "one of"),
            [(p.kind, code(p.flag) if p.flag else "anything", p.partner_kind, codes(p.any_of)) for p in PAIRINGS],
        ),
    )  # fmt: skip


def _rules() -> str:
    """What the module of the hooks says below its first line."""
    return prose(sys.modules[Lifecycle.__module__].__doc__).partition("\n\n")[2]


def _names(specs: type) -> list[str]:
    return [name for name in vars(specs) if name.startswith(f"{PROJECT}_")]


def _signature(specs: type, name: str) -> str:
    signature = inspect.signature(getattr(specs, name))
    given = [f"{p.name}: {p.annotation}" for p in list(signature.parameters.values())[1:]]
    return f"{name}({', '.join(given)}) -> {signature.return_annotation}"


def _call(name: str) -> str:
    spec = getattr(Lifecycle, name)
    if "wrapper=True" in (spec.__doc__ or ""):
        return "wrapper"
    return "first result" if getattr(spec, f"{PROJECT}_spec")["firstresult"] else "lifecycle"


def _registration(name: str) -> Iterator[str]:
    about = HookDoc.of(getattr(Registration, name))
    kind = next((kind for kind in Kind if kind.hook == name), None)
    found = [s.component.name for s in catalog().components(kind)] if kind else []
    if name == COMMANDS:
        found = [command.name for plugin in catalog().plugins for command in plugin.commands]
    yield f"### `{_signature(Registration, name)}`"
    yield (
        f"*registration* of kind `{kind}`. {about.text}"
        if kind
        else f"*registration*. {about.text}"
    )
    if found:
        yield f"In this repository: {codes(found)}."
    if fields := about.listed():
        yield fields
    yield example_of(name)


def _lifecycle(name: str) -> Iterator[str]:
    about = HookDoc.of(getattr(Lifecycle, name))
    yield f"### `{_signature(Lifecycle, name)}`"
    yield f"*{_call(name)}*. {about.text}"
    found = providers(name)
    if found:
        yield f"In this repository: {', '.join(home(plugin.name) for plugin in found)}."
    if fields := about.listed():
        yield fields
    yield example_of(name)


def _capabilities(kind: Kind) -> Iterator[str]:
    have = list(catalog().components(kind))
    yield f"### {title(kind)}"
    yield table(
        ("flag", "promise", "declared by"),
        [
            (
                code(flag),
                prose(promise),
                codes(s.component.name for s in have if flag in s.component.capabilities),
            )
            for flag, promise in CAPABILITIES[kind].items()
        ],
    )
