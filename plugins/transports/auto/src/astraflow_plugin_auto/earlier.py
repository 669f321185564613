"""What runs before this one measured: how fast their RaaS fetched versions from a trainer at the same address."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LEAST_MB = 4.0
"""Mean size of a fetch from which its rate tells of bandwidth; that of smaller ones tells of round trips."""
RUNS = 20
"""Runs that are looked at, from the newest."""
TAIL = 64 << 10
"""Bytes of the end of a run's metrics that are read."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Bandwidth in MB/s, and who measured it how."""

    mb_s: float
    how: str


def measured(folder: Path, host: str) -> Measured | None:
    """The rate of the newest run in ``folder`` whose publisher was reached at ``host`` by what a run directory
    holds; ``None`` if there is no such run, or what it fetched was too small to tell."""
    try:
        runs = [path.parent for path in folder.glob("*/metrics.jsonl")]
        runs.sort(key=lambda run: (run / "metrics.jsonl").stat().st_mtime, reverse=True)
    except OSError:  # somebody removes runs meanwhile
        return None
    for run in runs[:RUNS]:
        refresh = _last_refresh(run, _reached_at(run, host))
        if refresh is None or refresh["pull_mb"] < LEAST_MB or refresh["pull_s"] <= 0:
            continue
        how = f"{refresh['swaps']:.0f} fetches of {refresh['pull_mb']:.0f} MB in run {run.name!r}"
        return Measured(refresh["pull_mb"] / refresh["pull_s"], how)
    return None


def _reached_at(run: Path, host: str) -> frozenset[str]:
    """Policies of a run whose publisher was reached at ``host``."""
    try:
        policies = tomllib.loads((run / "config.toml").read_text("utf-8"))["policies"]
        return frozenset(
            name for name, table in policies.items() if table["transport"].get("advertise") == host
        )
    except (OSError, ValueError, KeyError, AttributeError):
        return frozenset()


def _last_refresh(run: Path, policies: frozenset[str]) -> dict[str, float] | None:
    """What the run said last of the fetches of any of ``policies``."""
    if not policies:
        return None
    try:
        with (run / "metrics.jsonl").open("rb") as file:
            file.seek(-min(TAIL, file.seek(0, 2)), 2)
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        try:
            said: dict[str, Any] = json.loads(line)
            if said["policy"] in policies:
                return {
                    name: float(said["refresh"][name]) for name in ("swaps", "pull_s", "pull_mb")
                }
        except (ValueError, KeyError, TypeError):  # half a line, or one of another kind
            continue
    return None
