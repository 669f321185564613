"""How far the installation of an environment has come, from what pip or uv have written and what lies in its folder."""

from __future__ import annotations

import re
from pathlib import Path

_MOST_BYTES = 1 << 20
"""Bytes at the end of a log that are read; pip names what it installs in its last lines."""
_LISTED = re.compile(r"^Installing collected packages: (.+)$", re.MULTILINE)
_RESOLVED = re.compile(r"^Resolved (\d+) packages?\b", re.MULTILINE)
_COLLECTED = re.compile(r"^(?:Collecting|Processing) \S", re.MULTILINE)
_SEPARATORS = re.compile(r"[-_.]+")


def packages_installed(folder: Path, log: Path) -> str:
    """Words such as ``12 of 57 packages``; before pip knows how many there will be, ``23 packages so far``. Empty as long as
    nothing is known."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _MOST_BYTES))
            said = file.read(_MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""
    if listed := _LISTED.findall(said):
        wanted = {_normal(name) for name in listed[-1].split(", ")}
        there = {
            _normal(found.name.partition("-")[0])
            for found in folder.glob("lib/python*/site-packages/*.dist-info")
        }
        return f"{len(wanted & there)} of {len(wanted)} packages"
    if resolved := _RESOLVED.findall(said):  # uv writes no more until it has installed them
        return f"{resolved[-1]} packages"
    collected = len(_COLLECTED.findall(said))
    return f"{collected} packages so far" if collected else ""


def _normal(name: str) -> str:
    """A name of a distribution in its normalized form (packaging.python.org, "Names and normalization")."""
    return _SEPARATORS.sub("-", name.strip()).lower()
