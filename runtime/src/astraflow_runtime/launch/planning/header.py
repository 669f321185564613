"""The first lines of a run: what it is made of and where it lives."""

from __future__ import annotations

from astraflow_runtime.launch.planning.prepare import Prepared

UNPACKAGED = "unpackaged"


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
    count = config.raas.replicas
    rows.append(("rollout", f"{count} RaaS, staleness at most {config.run.max_staleness}"))
    rows.append(("directory", str(prepared.directory)))
    width = max(len(key) for key, _ in rows)
    lines += [f"  {key:<{width}}  {value}" for key, value in rows]
    lines += [f"  note: {note}" for note in prepared.notes]
    return "\n".join(lines) + "\n"
