"""``astraflow plugins``: the installed plugins, what each provides, and its problems."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from astraflow_runtime.cli.helping import teach
from astraflow_runtime.cli.installation import why
from astraflow_runtime.cli.installation.plugin_index import commands
from astraflow_runtime.cli.output import print_json, print_table

if TYPE_CHECKING:
    from astraflow_core.catalog import Catalog
    from astraflow_core.component import Kind
    from astraflow_core.installed.discovery import Plugin


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--schema", metavar="KIND/NAME", help="print the JSON schema of a component's keys"
    )
    parser.set_defaults(command=run)
    teach(parser, "write-a-plugin.md", "plugins", "plugins --schema trainer/torch")
    parts = parser.add_subparsers(title="commands", metavar="")
    why.add(parts)
    commands.add(parts)


def run(arguments: argparse.Namespace) -> int:
    """List everything; a broken plugin is listed too, and is not a failure."""
    from astraflow_core.catalog import Catalog
    from astraflow_core.installed.discovery import find_unregistered
    from astraflow_runtime.cli.installation.plugin_status import slow_manifest

    catalog = Catalog.discover()
    if arguments.schema:
        return _schema(catalog, arguments.schema)
    if arguments.json:
        print_json([_record(plugin) for plugin in (*catalog.plugins, *find_unregistered())])
        return 0
    rows = [
        (
            entry.kind,
            entry.component.name,
            entry.plugin,
            f"{entry.distribution} {entry.version}",
            ", ".join(sorted(entry.component.capabilities)) or "-",
            entry.component.summary,
        )
        for entry in catalog.components()
    ]
    print_table(("KIND", "NAME", "PLUGIN", "DISTRIBUTION", "CAPABILITIES", "SUMMARY"), rows)
    shared: dict[tuple[Kind, str], list[str]] = {}
    for entry in catalog.components():
        shared.setdefault((entry.kind, entry.component.name), []).append(entry.qualified)
    several = [
        (f"{kind} {name}", " or ".join(each), catalog.meaning(kind, name) or "nothing: ambiguous")
        for (kind, name), each in shared.items()
        if len(each) > 1
    ]
    if several:
        print("\nprovided by several plugins")
        print_table(("COMPONENT", "QUALIFIED NAMES", "THE SHORT NAME MEANS"), several)
    if provided := _commands(catalog):
        print("\ncommands")
        print_table(("COMMAND", "PLUGIN", "DISTRIBUTION", "SUMMARY"), provided)
    hooked = [plugin for plugin in catalog.plugins if plugin.hooks]
    if hooked:
        print("\nlifecycle hooks")
        print_table(("PLUGIN", "HOOKS"), [(p.name, ", ".join(p.hooks)) for p in hooked])
    slow = [
        (plugin.name, reason) for plugin in catalog.plugins if (reason := slow_manifest(plugin))
    ]
    if slow:
        print("\nslow to import")
        print_table(("PLUGIN", "WHY"), slow)
    unusable = [plugin for plugin in catalog.plugins if not plugin.healthy]
    unusable += find_unregistered()
    if unusable:
        print("\ncannot be used")
        print_table(
            ("PLUGIN", "DISTRIBUTION", "PROBLEM"),
            [(p.name, f"{p.distribution} {p.version}", p.problem) for p in unusable],
        )
    return 0


def _commands(catalog: Catalog) -> list[tuple[str, ...]]:
    return sorted(
        (command.name, plugin.name, f"{plugin.distribution} {plugin.version}", command.summary)
        for plugin in catalog.plugins
        if plugin.healthy
        for command in plugin.commands
    )


def _schema(catalog: Catalog, name: str) -> int:
    from astraflow_core.component import Kind
    from astraflow_core.errors import PluginError
    from astraflow_core.suggestions import did_you_mean
    from astraflow_runtime.cli.installation.docstrings import docstring_of

    kind, slash, use = name.partition("/")
    if not slash or kind not in list(Kind):
        raise PluginError(
            f"--schema {name!r}: expected KIND/NAME{did_you_mean(kind, list(Kind))} "
            f"(kinds: {', '.join(Kind)})"
        )
    selected = catalog.select(kind, use)
    model = selected.config_model()
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    if model is not None:
        schema = model.model_json_schema()
    about = {
        "title": f"{kind}/{selected.qualified}",
        "description": docstring_of(selected.component.target) or selected.component.summary,
        "x-capabilities": sorted(selected.component.capabilities),
        "x-provided-by": f"{selected.distribution} {selected.version}".strip() or "no package",
    }
    print_json(schema | about)
    return 0


def _record(plugin: Plugin) -> dict[str, Any]:
    from astraflow_runtime.cli.installation.docstrings import docstring_of

    return {
        "name": plugin.name,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "file": plugin.file,
        "manifest": plugin.manifest,
        "api": ".".join(map(str, plugin.api)) if plugin.api else None,
        "state": str(plugin.state),
        "problem": plugin.problem or None,
        "hooks": list(plugin.hooks),
        "components": [
            {
                "kind": str(kind),
                "name": component.name,
                "summary": component.summary,
                "about": docstring_of(component.target),
                "target": component.target,
                "config": component.config,
                "capabilities": sorted(component.capabilities),
            }
            for kind, component in plugin.components
        ],
        "commands": [asdict(command) for command in plugin.commands],
    }
