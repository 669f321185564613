"""``plugins.json`` of a run: which distributions, in which versions, provide its components.

The launcher writes it; every other process, perhaps in an interpreter of its own, holds itself to it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from astraflow_core.errors import VersionSkew

FILE = "plugins.json"


def write_plugins(directory: Path, plugins: Sequence[Mapping[str, Any]]) -> None:
    """Write the file. Each entry names ``plugin``, ``distribution``, ``version``, whether it is ``packaged``,
    and its ``components`` (place in the config → name)."""
    partial = directory / f".{FILE}.partial"
    partial.write_text(json.dumps(plugins, indent=2) + "\n", encoding="utf-8")
    partial.replace(directory / FILE)


def read_plugins(directory: Path) -> list[dict[str, Any]]:
    """The entries of the file; none if there is no file."""
    file = directory / FILE
    if not file.exists():
        return []
    entries: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    return entries


def check_version(distribution: str, version: str, directory: Path) -> None:
    """Raise :class:`VersionSkew` if the run of a directory began with another version of a distribution
    than the one that this interpreter has."""
    began_with = _versions(directory).get(distribution, version)
    if distribution and began_with != version:
        raise VersionSkew(
            f"the run began with {distribution} {began_with}, and this interpreter has {version}; "
            f"pip install '{distribution}=={began_with}' there, or `astraflow env create` it anew"
        )


@lru_cache(maxsize=4)
def _versions(directory: Path) -> dict[str, str]:
    return {entry["distribution"]: entry["version"] for entry in read_plugins(directory)}
