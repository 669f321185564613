"""What takes turns: of some heavy tests a commit runs a share, chosen by the sources that they test."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("core", "libs/*", "testing")


@cache
def turn(shares: int) -> int:
    """Which of ``shares`` it is, 0 to ``shares`` - 1: the same for equal sources of core, libraries and suites."""
    digest = hashlib.sha256()
    for file in sorted(file for place in SOURCES for file in ROOT.glob(f"{place}/src/**/*.py")):
        digest.update(file.read_bytes())
    return int.from_bytes(digest.digest()[:4], "big") % shares
