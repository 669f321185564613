"""Reports of checks, and wheels that have them."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

from astraflow_runtime.cli.installation.check_report import FILE, digest_of, digest_of_files


def report(**changes: Any) -> dict[str, Any]:
    told = {
        "format": 1,
        "distribution": {"name": "astraflow-plugin-brevity", "version": "1.10.0"},
        "files": "sha256:" + "0" * 64,
        "plugins": [
            {
                "name": "brevity",
                "api": [1, 0],
                "components": [{"kind": "reward", "name": "brevity", "capabilities": ["blocking"]}],
                "commands": ["shortest"],
                "hooks": [],
            }
        ],
        "core_api": [1, 0],
        "checks": [
            {"name": "manifest", "verdict": "passed", "summary": "", "problems": []},
            {"name": "mypy", "verdict": "not checked", "summary": "", "problems": []},
        ],
        "verdict": "incomplete",
    } | changes
    return told | {"digest": digest_of(told)}


def content(**changes: Any) -> bytes:
    return json.dumps(report(**changes)).encode()


def named(name: str, version: str = "1.0") -> dict[str, Any]:
    return {"distribution": {"name": name, "version": version}}


def with_plugin(**changes: Any) -> list[dict[str, Any]]:
    return [report()["plugins"][0] | changes]


def wheel_of(file: Path, metadata: str, code: str = "", **changes: Any) -> None:
    """A wheel whose report is of a package with an empty module; ``code`` is what the module has."""
    (package := file.parent / "made" / "later").mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").touch()
    (package / "__pycache__").mkdir(exist_ok=True)
    files = {"files": digest_of_files([package])} | changes
    with zipfile.ZipFile(file, "w") as wheel:
        wheel.writestr(f"later/{FILE}", content(**files))
        wheel.writestr("later/__init__.py", code)
        wheel.writestr("later-1.0.dist-info/METADATA", f"Metadata-Version: 2.4\n{metadata}")


def linked(url: str, label: str = "Homepage") -> dict[str, Any]:
    named = {"name": "linked", "version": "1.0", "summary": "A <b>bold</b> claim"}
    return {"distribution": named | {"links": [{"label": label, "url": url}]}}
