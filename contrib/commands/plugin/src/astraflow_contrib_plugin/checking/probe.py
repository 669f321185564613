"""``python -m astraflow_contrib_plugin.checking.probe DISTRIBUTION FILE``: what a distribution registers, read in a separate
process, since importing its manifest may fail in any way."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

from astraflow_core.catalog import Catalog
from astraflow_core.component import API_VERSION, Kind
from astraflow_core.errors import AstraFlowError
from astraflow_core.installed.discovery import Plugin, find_unregistered
from astraflow_runtime.config.explain import component_keys


def look(distribution: str) -> dict[str, Any]:
    """Its plugins, with the folder of the package of each."""
    catalog = Catalog.discover()
    return {
        "core_api": list(API_VERSION),
        "plugins": [
            _of(catalog, plugin)
            for plugin in catalog.plugins
            if _normal(plugin.distribution) == _normal(distribution)
        ],
        "unregistered": [
            plugin.problem
            for plugin in find_unregistered()
            if _normal(plugin.distribution) == _normal(distribution)
        ],
    }


def _of(catalog: Catalog, plugin: Plugin) -> dict[str, Any]:
    return {
        "name": plugin.name,
        "manifest": plugin.manifest,
        "problem": plugin.problem,
        "api": list(plugin.api) if plugin.api else None,
        "package": _package(plugin.manifest.partition(".")[0]),
        "components": [
            {
                "kind": str(kind),
                "name": component.name,
                "target": component.target,
                "capabilities": sorted(component.capabilities),
                "problems": _problems(catalog, plugin, str(kind), component.name),
                "undescribed": _undescribed(catalog, str(kind), f"{plugin.name}/{component.name}"),
            }
            for kind, component in plugin.components
        ],
        "commands": [command.name for command in plugin.commands],
        "hooks": list(plugin.hooks),
    }


def _package(top: str) -> str:
    """The folder of a package; a module has none."""
    spec = importlib.util.find_spec(top)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return str(Path(places[0]).resolve()) if places else ""


def _problems(catalog: Catalog, plugin: Plugin, kind: str, name: str) -> list[str]:
    """Why its target or its keys cannot be imported; a missing backend is no mistake of the plugin."""
    try:
        selected = catalog.select(kind, f"{plugin.name}/{name}")
        selected.config_model()
        selected.load(selected.component.target)
    except AstraFlowError as error:
        cause = error.__cause__
        missing = cause.name if isinstance(cause, ModuleNotFoundError) else None
        own = {plugin.manifest.partition(".")[0], "astraflow_core"}
        if missing and missing.partition(".")[0] not in own:
            return []
        return [f"{kind} {name!r}: {error}"]
    return []


def _undescribed(catalog: Catalog, kind: str, use: str) -> list[str]:
    try:
        keys = component_keys(catalog, Kind(kind), use)
    except AstraFlowError:
        return []  # _problems says why
    return [key.path.removeprefix(f"{kind}/{use}.") for key in keys if not key.description]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(look(sys.argv[1])), encoding="utf-8")
