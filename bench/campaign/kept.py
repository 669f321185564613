"""Campaigns that are recorded, one file each, so that they add up: the faults, their effects, and how much other work
the machine did meanwhile."""

from __future__ import annotations

import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from bench.__main__ import RESULTS
from bench.campaign.campaign import Record
from bench.campaign.verdict import Verdict
from bench.support import trees

FOLDER = RESULTS / "chaos"


def recorded(seed: int, make: Callable[[], Record], folder: Path = FOLDER) -> Record:
    """Make the campaign whose first run has ``seed``, and keep it in place of an earlier one of that seed."""
    began, cpu, own = time.monotonic(), trees.machine_cpu_s(), _children_s()
    record = make()
    wall, own = time.monotonic() - began, _children_s() - own
    facts = {
        "date": time.strftime("%Y-%m-%d"),
        "wall_s": round(wall, 1),
        "cpu_s": round(own, 1),
        "others_cores": round((trees.machine_cpu_s() - cpu - own) / wall, 2),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"seed-{seed}.json").write_text(_text(record, facts))
    return record


def together(folder: Path = FOLDER) -> dict[str, float]:
    """The figures of all campaigns that are kept; ``others_cores`` is weighed by their wall time."""
    whole, wall, cpu, others = Record(), 0.0, 0.0, 0.0
    for file in sorted(folder.glob("seed-*.json")):
        held = json.loads(file.read_text())
        whole.faults += Counter(held["faults"])
        for kind, seconds in held["recoveries"].items():
            whole.recoveries[kind] += seconds
        whole.verdict.add(Verdict(**held["verdict"]))
        whole.stalls += held["stalls"]
        whole.runs += held["runs"]
        wall, cpu = wall + held["wall_s"], cpu + held["cpu_s"]
        others += held["others_cores"] * held["wall_s"]
    return {
        **whole.figures(),
        "wall_s": wall,
        "cpu_s": cpu,
        "others_cores": others / wall if wall else 0.0,
    }


def _text(record: Record, facts: dict[str, object]) -> str:
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    for kind, found in sorted(record.recoveries.items()):
        seconds[kind] = sorted(round(each, 3) for each in found)
    held = {
        **facts,
        "runs": record.runs,
        "stalls": record.stalls,
        "verdict": asdict(record.verdict),
        "troubles": record.troubles,
        "faults": dict(sorted(record.faults.items())),
    }
    lists = ",\n  ".join(
        f"{json.dumps(kind)}: {json.dumps(found)}" for kind, found in seconds.items()
    )
    return json.dumps(held, indent=1)[:-2] + f',\n "recoveries": {{\n  {lists}\n }}\n}}\n'


def _children_s() -> float:
    """CPU seconds of this process and of its ended children."""
    return sum(os.times()[:4])
