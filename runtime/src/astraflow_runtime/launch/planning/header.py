"""The first lines of a run: its components and its directory."""

from __future__ import annotations

import shlex
from importlib import metadata
from pathlib import Path

from astraflow_core.component import Kind
from astraflow_core.config.models import LauncherTable, RunConfig
from astraflow_core.config.tables import component_tables
from astraflow_core.installed.distributions import index
from astraflow_runtime.launch.planning.prepare import Prepared

UNPACKAGED = "unpackaged"
RUNS = "runs"
"""The folder that ``astraflow ui`` shows unless another one is given."""


def header(prepared: Prepared) -> str:
    """Name, components with the versions of their plugins, and the directory; ends with a newline."""
    config = prepared.config
    versions = {
        path: f"{entry['plugin']} {entry['version']}" if entry["packaged"] else UNPACKAGED
        for entry in prepared.plugins
        for path in entry["components"]
    }

    def shown(path: str, use: str) -> str:
        return f"{use} ({versions.get(path, UNPACKAGED)})"

    again = ", resumed" if prepared.resumed else ""
    lines = [f"run {config.run.name}: {config.run.steps} steps, seed {config.run.seed}{again}"]
    rows = [("prompts", shown("prompts", config.prompts.use))]
    for kind, table in (("workflow", config.workflow), ("reward", config.reward)):
        if table is not None:
            rows.append((kind, shown(kind, table.use)))
        if kind == "workflow":
            rows += [
                ("environment", shown(place.path, place.table.use))
                for place in component_tables(config)
                if place.kind is Kind.ENVIRONMENT
            ]
    for name, policy in config.policies.items():
        parts = [policy.trainer, policy.algorithm, policy.engine, policy.transport]
        keys = ["trainer", "algorithm", "engine", "transport"]
        used = [
            f"{key} {shown(f'policies.{name}.{key}', t.use)}"
            for key, t in zip(keys, parts, strict=True)
        ]
        used += [
            shown(f"policies.{name}.data.{i}", table.use) for i, table in enumerate(policy.data)
        ]
        rows.append((name, ", ".join(used)))
        rows.append(("", policy.model))
    for name, engine in config.engines.items():
        kept = (
            "frozen"
            if engine.follows is None
            else f"follows {engine.follows}, {engine.behind} behind"
        )
        rows.append((name, f"{kept}, engine {shown(f'engines.{name}', engine.use)}"))
        rows.append(("", engine.model))
    if config.launcher != LauncherTable():
        rows.append(("launcher", shown("launcher", config.launcher.use)))
    rows += [
        (f"tracker {name}", shown(f"trackers.{name}", table.use))
        for name, table in config.trackers.items()
    ]
    count = config.raas.replicas
    rows.append(("rollout", f"{count} RaaS, staleness at most {config.run.max_staleness}"))
    rows.append(("directory", str(prepared.directory)))
    if pages := how_to_see(config, prepared.directory):
        rows.append(("pages", pages))
    width = max(len(key) for key, _ in rows)
    lines += [f"  {key:<{width}}  {value}" for key, value in rows]
    lines += [f"  note: {note}" for note in prepared.notes]
    return "\n".join(lines) + "\n"


def how_to_see(config: RunConfig, directory: Path) -> str:
    """The command that opens the pages about a run in a browser; empty if it is not installed."""
    distribution = index().commands.get("ui", "")
    try:
        metadata.distribution(distribution)
    except (ValueError, metadata.PackageNotFoundError):
        return ""
    if "pages" in config.plugins.enable:
        return f"astraflow ui --of {shlex.quote(str(directory))}"
    root = directory.resolve().parent
    default = root == (Path.cwd() / RUNS).resolve()
    return "astraflow ui" if default else f"astraflow ui {shlex.quote(str(root))}"
