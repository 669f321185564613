"""``plugins.json`` of a run: which distributions, in which versions, provide its components.

The launcher writes it; every other process, perhaps in a separate interpreter, checks its packages against it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from astraflow_core.errors import UserError, VersionSkew

FILE = "plugins.json"


def read_plugins(directory: Path) -> list[dict[str, Any]]:
    """The entries of the file; none if there is no file."""
    file = directory / FILE
    if not file.exists():
        return []
    try:
        entries: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(
            f"{file} is damaged ({error}); remove it, and the run uses the packages that are installed now"
        ) from error
    return entries


def lock_of(directory: Path) -> dict[str, str]:
    """``"KIND/NAME"`` → plugin that provided this component when the run of a directory began; nothing if none has."""
    return {
        name: entry["plugin"]
        for entry in read_plugins(directory)
        if entry["packaged"]
        for name in entry.get("provides", ())
    }


def module_folders(plugins: Iterable[Mapping[str, Any]]) -> list[str]:
    """Folders that hold a run's own modules, those of ``use = "module:attr"``."""
    folders = [entry.get("folder") for entry in plugins]
    return [folder for folder in dict.fromkeys(folders) if folder]


def check_version(distribution: str, version: str, directory: Path) -> None:
    """Raise :class:`VersionSkew` if the run of a directory began with another version of a distribution
    than the one that this interpreter has."""
    began_with = _versions(directory).get(distribution, version)
    if distribution and began_with != version:
        raise VersionSkew(
            f"the run started with {distribution} {began_with}, and this interpreter has {version}; "
            f"pip install '{distribution}=={began_with}' there, or `astraflow env create` it again"
        )


@lru_cache(maxsize=4)
def _versions(directory: Path) -> dict[str, str]:
    return {entry["distribution"]: entry["version"] for entry in read_plugins(directory)}
