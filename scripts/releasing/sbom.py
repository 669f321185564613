"""The software bill of materials: our distributions with their files, and the contents of an environment with all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import wheels
from workspace import normal

from releasing.building import digest

WRITER = Path(__file__).parent / "in_tools" / "write_sbom.py"

# Run by the interpreter of the environment, which has packaging, since the core needs it.
_INSTALLED = """
import json
from importlib.metadata import distributions
from packaging.requirements import Requirement
found = []
for each in distributions():
    lines = [Requirement(line) for line in each.requires or ()]
    needed = [r.name for r in lines if r.marker is None or r.marker.evaluate({"extra": ""})]
    licence = each.metadata["License-Expression"] or each.metadata["License"] or ""
    found.append({"name": each.metadata["Name"], "version": each.version, "licence": licence, "requires": needed})
print(json.dumps(found))
"""
_LONGEST_LICENCE = 100
"""Some distributions put the whole text into the field for the licence's name."""


def installed(python: Path) -> list[dict[str, Any]]:
    """The distributions of an environment, in order of name."""
    listed = json.loads(wheels.execute(str(python), "-c", _INSTALLED))
    for each in listed:
        licence = each["licence"].strip()
        short = len(licence) <= _LONGEST_LICENCE and "\n" not in licence
        each["licence"] = licence if short else ""
        each["name"] = normal(each["name"])
        each["requires"] = sorted({normal(name) for name in each["requires"]})
    return sorted(listed, key=lambda each: str(each["name"]))


def write(
    python: Path,
    built: Mapping[str, tuple[Path, Path]],
    version: str,
    day: date,
    tools: Path,
    target: Path,
) -> None:
    """Write the SBOM of a release, validated against the schema of CycloneDX 1.6."""
    components = [
        each | {"files": {file.name: digest(file) for file in built.get(each["name"], ())}}
        for each in installed(python)
    ]
    began = datetime(day.year, day.month, day.day, tzinfo=UTC)
    given = target.with_suffix(".given")
    content = {"version": version, "timestamp": began.isoformat(), "components": components}
    given.write_text(json.dumps(content), encoding="utf-8")
    wheels.execute(str(tools), str(WRITER), str(given), str(target))
    given.unlink()
