"""What runs before this one measured: how fast their RaaS fetched versions from a trainer at the same address."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from astraflow_core.types import Link

LEAST_MB = 4.0
"""Mean size of a fetch from which its rate measures bandwidth, where the run has measured no link: that of smaller
ones measures round trips."""
RUNS = 20
"""Runs that are looked at, from the newest."""
TAIL = 64 << 10
"""Bytes of the end of a run's metrics that are read."""
_NEEDED = {"swaps", "pull_s", "pull_mb"}


def measured(folder: Path, host: str) -> tuple[Link, str] | None:
    """The slowest link of the newest run in ``folder`` whose publisher was reached at ``host``, and which run that is,
    by what a run directory holds; ``None`` if there is none, or it fetched too little to measure."""
    try:
        runs = [path.parent for path in folder.glob("*/metrics.jsonl")]
        runs.sort(key=lambda run: (run / "metrics.jsonl").stat().st_mtime, reverse=True)
    except OSError:  # another process removes runs meanwhile
        return None
    for run in runs[:RUNS]:
        refresh = _last_refresh(run, _reached_at(run, host))
        if refresh is None:
            continue
        if refresh.get("link_mb_s", 0.0) > 0:
            link = Link(refresh["link_mb_s"], refresh.get("link_s", 0.0))
            return link, f"measured in run {run.name!r}"
        if refresh["pull_mb"] >= LEAST_MB and refresh["pull_s"] > 0:
            link = Link(refresh["pull_mb"] / refresh["pull_s"], 0.0)
            swaps, size = refresh["swaps"], refresh["pull_mb"]
            return link, f"{swaps:.0f} fetches of {size:.0f} MB in run {run.name!r}"
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
                refresh = {name: float(value) for name, value in said["refresh"].items()}
                if refresh.keys() >= _NEEDED:
                    return refresh
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
        ):  # half a line, or one of another kind
            continue
    return None
