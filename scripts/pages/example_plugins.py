"""examples.json of the command `plugin`: the packages of examples/plugins/, from which `plugin new --from-example` starts."""

from __future__ import annotations

import json

import dev
from workspace import tracked_files

from astraflow_core.component import Kind

EXAMPLES = dev.ROOT / "examples" / "plugins"
_KEPT = (".md", ".py")


def example_plugins() -> str:
    """Kind → name of the example of it, and its files: README, package and tests."""
    found = {}
    tracked = [file for file in tracked_files() if file.is_relative_to(EXAMPLES)]
    for package in sorted(path.parent for path in EXAMPLES.glob("*/pyproject.toml")):
        files = {
            file.relative_to(package).as_posix(): file.read_text(encoding="utf-8")
            for file in tracked
            if package in file.parents and file.suffix in _KEPT
        }
        (manifest,) = [text for name, text in files.items() if name.endswith("/manifest.py")]
        found[_kind(manifest)] = {"name": package.name, "files": files}
    return json.dumps(found, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def _kind(manifest: str) -> str:
    hooks = {"astraflow_commands": "command", **{kind.hook: str(kind) for kind in Kind}}
    for hook, kind in hooks.items():
        if f"def {hook}(" in manifest:
            return kind
    raise dev.Failure("an example of examples/plugins/ registers nothing")
