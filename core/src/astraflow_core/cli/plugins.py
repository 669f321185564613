"""``astraflow plugins``: what is installed, what each provides, and what is wrong with it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from astraflow_core.cli.output import print_json, print_table

if TYPE_CHECKING:
    from astraflow_core.catalog import Catalog
    from astraflow_core.discovery import Plugin


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser("plugins", help="list plugins and components")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--schema", metavar="KIND/NAME", help="print the JSON schema of a component's keys"
    )
    parser.set_defaults(command=run)
    inner = parser.add_subparsers(title="commands", metavar="")
    why = inner.add_parser("why", help="say why a plugin or component can or cannot be used")
    why.add_argument("name", metavar="NAME", help="a plugin, a component or KIND/NAME")
    why.add_argument("--json", action="store_true", help="print JSON")
    why.set_defaults(command=run_why)


def run(arguments: argparse.Namespace) -> int:
    """List everything; a broken plugin is a line of the list, never a failure."""
    from astraflow_core.catalog import Catalog

    catalog = Catalog.discover()
    if arguments.schema:
        return _schema(catalog, arguments.schema)
    if arguments.json:
        print_json([_record(plugin) for plugin in catalog.plugins])
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
    hooked = [plugin for plugin in catalog.plugins if plugin.hooks]
    if hooked:
        print("\nlifecycle hooks")
        print_table(("PLUGIN", "HOOKS"), [(p.name, ", ".join(p.hooks)) for p in hooked])
    unusable = [plugin for plugin in catalog.plugins if not plugin.healthy]
    if unusable:
        print("\ncannot be used")
        print_table(
            ("PLUGIN", "DISTRIBUTION", "PROBLEM"),
            [(p.name, f"{p.distribution} {p.version}", p.problem) for p in unusable],
        )
    return 0


def run_why(arguments: argparse.Namespace) -> int:
    """Tell all that is known of the plugins that a name may mean."""
    from astraflow_core.catalog import Catalog
    from astraflow_core.requirements import missing_runtime

    records = []
    for plugin in _meant(Catalog.discover(), arguments.name):
        missing = missing_runtime(plugin.metadata)
        if plugin.blocked:
            verdict = f"not imported: {plugin.problem}"
        elif not plugin.healthy:
            verdict = f"cannot be used: {plugin.problem}"
        elif missing:
            fix = f"pip install '{plugin.distribution}[runtime]'"
            verdict = f"listed, but cannot run here: needs {', '.join(missing)}; {fix}"
        else:
            verdict = "can be used by any run that names it"
        records.append(_record(plugin) | {"missing": missing, "verdict": verdict})
    if arguments.json:
        print_json(records)
        return 0
    for record in records:
        print(f"plugin {record['name']}: {record['verdict']}")
        for key in ("distribution", "version", "file", "manifest", "api"):
            print(f"  {key}: {record[key] or 'unknown'}")
        for entry in record["components"]:
            print(f"  provides {entry['kind']} {entry['name']}: {entry['summary']}")
        if record["hooks"]:
            print(f"  hooks: {', '.join(record['hooks'])}")
    return 0


def _meant(catalog: Catalog, name: str) -> list[Plugin]:
    owners = {
        plugin.name: plugin
        for plugin in catalog.plugins
        for kind, component in plugin.components
        if name in (plugin.name, component.name, f"{kind}/{component.name}")
    }
    return list(owners.values()) or [catalog.plugin(name)]


def _schema(catalog: Catalog, name: str) -> int:
    from astraflow_core.component import Kind
    from astraflow_core.errors import PluginError
    from astraflow_core.suggestions import did_you_mean

    kind, slash, use = name.partition("/")
    if not slash or kind not in list(Kind):
        raise PluginError(
            f"--schema {name!r}: expected KIND/NAME{did_you_mean(kind, list(Kind))} "
            f"(kinds: {', '.join(Kind)})"
        )
    model = catalog.select(kind, use).config_model()
    empty = {"type": "object", "properties": {}, "additionalProperties": False}
    print_json(empty if model is None else model.model_json_schema())
    return 0


def _record(plugin: Plugin) -> dict[str, Any]:
    return {
        "name": plugin.name,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "file": plugin.file,
        "manifest": plugin.manifest,
        "api": ".".join(map(str, plugin.api)) if plugin.api else None,
        "problem": plugin.problem or None,
        "blocked": plugin.blocked,
        "hooks": list(plugin.hooks),
        "components": [
            {
                "kind": str(kind),
                "name": component.name,
                "summary": component.summary,
                "target": component.target,
                "config": component.config,
                "capabilities": sorted(component.capabilities),
            }
            for kind, component in plugin.components
        ],
    }
