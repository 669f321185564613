"""The components of this workspace, whatever else is installed."""

from __future__ import annotations

from functools import cache

import dev
import workspace

from astraflow_core.catalog import Catalog
from astraflow_core.component import Kind
from astraflow_core.hookspecs import PROJECT
from astraflow_core.installed.discovery import Plugin


@cache
def catalog() -> Catalog:
    """The plugins of this workspace, all of them and no others; a failure names one that is missing."""
    found = {plugin.distribution: plugin for plugin in Catalog.discover().plugins}
    chosen, missing = [], []
    for package in dev.packages():
        plugin = found.get(package.name)
        if plugin is not None and plugin.healthy:
            chosen.append(plugin)
        elif workspace.manifests(package.path):
            missing.append(f"{package.name}: {plugin.problem if plugin else 'not installed'}")
    if missing:
        raise dev.Failure(
            "these packages of the workspace cannot be described:\n  "
            + "\n  ".join(missing)
            + "\nCall `python3 scripts/dev.py setup`, then this again."
        )
    return Catalog(chosen)


@cache
def _folders() -> dict[str, str]:
    return {p.name: str(p.path.relative_to(dev.ROOT)) for p in dev.packages()}


def home(plugin: str) -> str:
    """A link to the package of a plugin."""
    folder = _folders()[catalog().plugin(plugin).distribution]
    return f"[{folder}](../{folder}/README.md)"


def providers(hook: str) -> list[Plugin]:
    """The plugins that implement a lifecycle hook."""
    return [plugin for plugin in catalog().plugins if hook in plugin.hooks]


def title(kind: Kind) -> str:
    """``Data policies``, ``Engines`` …"""
    return kind.hook.removeprefix(f"{PROJECT}_").replace("_", " ").capitalize()


def anchor(kind: Kind) -> str:
    """A link to the section of a kind on the page of the configuration."""
    return f"[{kind.value.replace('_', ' ')}](#{title(kind).lower().replace(' ', '-')})"
