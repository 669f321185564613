"""The part of docs/processes.md on what plugins serve, taken from the section of their READMEs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import dev

from astraflow_core.hookspecs import PROJECT
from astraflow_core.installed.entry_points import RUNTIME
from pages.markdown import page
from pages.workspace_catalog import catalog

SECTION = re.compile(r"^## Interface\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_SERVES = re.compile(
    r"BaseHTTPRequestHandler|add_(?:api_)?route|add_(?:get|post)\(|APIRouter|zmq\.(?:ROUTER|REP)|HttpPublisher[()]"
)


def interfaces() -> str:
    """What each plugin of the workspace that serves something says of its endpoints."""
    parts: list[str] = []
    for name, folder in serving():
        readme = folder / "README.md"
        found = SECTION.search(readme.read_text(encoding="utf-8"))
        if found is None:
            raise dev.Failure(f"{readme.relative_to(dev.ROOT)} has no section '## Interface'")
        link = f"../{folder.relative_to(dev.ROOT)}/README.md"
        parts += [f"### Plugin {name}", f"As [its README]({link}) has it.", found[1]]
    return page(*parts)


def serving() -> Iterator[tuple[str, Path]]:
    """Name and folder of the plugins that listen, or that add routes to a service."""
    folders = {package.name: package.path for package in dev.packages()}
    for plugin in catalog().plugins:
        folder = folders[plugin.distribution]
        sources = [] if plugin.name == RUNTIME else sorted((folder / "src").rglob("*.py"))
        if f"{PROJECT}_routes" in plugin.hooks or any(
            _SERVES.search(file.read_text(encoding="utf-8")) for file in sources
        ):
            yield plugin.name, folder
