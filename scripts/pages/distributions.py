"""docs/distributions.md and the runtime's index of them: which distribution provides what."""

from __future__ import annotations

import json
from collections import defaultdict

import dev
import workspace

from astraflow_core.component import Kind
from pages.markdown import GENERATED, code, page, table
from pages.workspace_catalog import catalog, title


def distributions_table() -> str:
    """Kind → component → distribution, hook → plugin → distribution, and command → distribution, as JSON."""
    components: dict[str, dict[str, str]] = defaultdict(dict)
    for entry in catalog().components():
        components[str(entry.kind)][entry.component.name] = entry.distribution
    hooks: dict[str, dict[str, str]] = defaultdict(dict)
    for plugin in catalog().plugins:
        for hook in plugin.hooks:
            hooks[hook][plugin.name] = plugin.distribution
    commands = {c.name: p.distribution for p in catalog().plugins for c in p.commands}
    found = {"commands": commands, "components": components, "hooks": hooks}
    return json.dumps(found, indent=1, sort_keys=True) + "\n"


def distributions() -> str:
    """The page of all distributions."""
    return page(
        "# Which distribution has what",
        GENERATED,
        """
Every distribution of this repository with the components and commands that it provides. `pip install DISTRIBUTION` adds it to an
environment, with `[runtime]` behind the name if the page says that its backend is apart. In a checkout
`python3 scripts/dev.py setup` installs all of them. `astraflow plugins` lists what is installed where you are.
""",
        table(("distribution", "provides", "backend in `[runtime]`", "what it is"), _rows()),
        "## The components by kind",
        *(part for kind in Kind for part in _of_kind(kind)),
        "## The commands",
        table(("name", "distribution", "what it is"), _commands()),
    )


def _rows() -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for package in dev.packages():
        folder = package.path.relative_to(dev.ROOT)
        provided = [
            f"{entry.kind} {code(entry.component.name)}"
            for entry in catalog().components()
            if entry.distribution == package.name
        ]
        provided += [
            f"command {code(command.name)}"
            for plugin in catalog().plugins
            if plugin.distribution == package.name
            for command in plugin.commands
        ]
        project = workspace.metadata_of(package.path)["project"]
        runtime = project.get("optional-dependencies", {}).get("runtime", [])
        name = f"[{package.name}](../{folder}/README.md)"
        if not (package.path / "README.md").exists():
            name = package.name
        rows.append(
            (name, ", ".join(provided) or "–", ", ".join(map(code, runtime)) or "–",
             project["description"])
        )  # fmt: skip
    return rows


def _of_kind(kind: Kind) -> list[str]:
    rows = [
        (code(entry.component.name), code(entry.distribution), entry.component.summary)
        for entry in catalog().components(kind)
    ]
    return [f"### {title(kind)}", table(("name", "distribution", "what it is"), rows)]


def _commands() -> list[tuple[str, ...]]:
    return sorted(
        (code(command.name), code(plugin.distribution), command.summary)
        for plugin in catalog().plugins
        for command in plugin.commands
    )
