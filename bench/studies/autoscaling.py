"""Autoscaling against fixed pools, and one RaaS that becomes sixteen: ``python -m bench.studies.autoscaling``.

The counterpart of table 4 and figure 7a of the AstraFlow paper. One policy whose rollouts become twice as long and short again
during the run, a trainer whose step takes 1.5 s, RaaS of eight episodes at once. Four RaaS keep the trainer busy at the beginning
and at the end, six nearly in the middle. ``small``: always two; ``large``: always six; ``auto``: `[raas] autoscale` with the rule
`three_zones` from two to six. ``1-16-1``: a RaaS that suffices is joined by fifteen others by `astraflow raas add`, and
these are drained again. Engine and trainer are paced; the rule, the launcher's starts and drains, and the
start of every process are real, and take CPU time that a cluster would have elsewhere.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.studies.lines import Panel, picture
from bench.studies.records import Runs
from bench.studies.services import TASK, Job, SystemStudy, main, policy

BATCH, PLACES, STEP_S = 64, 8, 1.5
MEDIAN_S, SIGMA = 0.3, 0.5
STEPS, SMALL, LARGE = 72, 2, 6
LOAD = [[0, 1.0], [16, 1.0], [24, 2.0], [44, 2.0], [52, 1.0]]
MANY, MANY_STEPS = 16, 48
ADD_AT, DRAIN_AT = 10, 30
LOOK_S = 0.2


def job(
    replicas: int, steps: int, *, auto: bool = False, places: int = PLACES, load: Any = LOAD
) -> str:
    """The config of a run."""
    return f"""
[run]
name = "study"
steps = {steps}
group_size = 8
max_staleness = 2

{TASK}
[raas]
replicas = {replicas}
max_concurrent_episodes = {places}
autoscale = {str(auto).lower()}

[balance]
every = 3
cool_down_s = 4
min_replicas = {SMALL if auto else 1}
max_replicas = {LARGE if auto else MANY}

[eval]
every = 12
sets.held_out = {{ use = "digits", digits = 3, split = "held_out", size = 64 }}
""" + policy(
        "solver",
        BATCH,
        f"token_s = 0.001, median = {1000 * MEDIAN_S:.0f}, sigma = {SIGMA}, load = {load}",
        f"step_s = {STEP_S}, lr = 600",
    )


def up_and_down(runs: Path, launcher: subprocess.Popen[bytes]) -> None:
    """Fifteen more after ``ADD_AT`` updates, and all but the first drained after ``DRAIN_AT``."""

    def wait_for(updates: int) -> Path:
        while launcher.poll() is None:
            for file in runs.glob("*/metrics.jsonl"):
                if file.read_text().count('"step"') >= updates:
                    return file.parent
            time.sleep(LOOK_S)
        raise RuntimeError("the run ended before its pool was changed")

    def ask(*words: str) -> None:
        command = [sys.executable, "-m", "astraflow_runtime", "raas", *words]
        subprocess.run(command, check=True, timeout=60, stdout=sys.stderr)

    run = str(wait_for(ADD_AT))
    ask("add", "--run", run, "--count", str(MANY - 1))
    wait_for(DRAIN_AT)
    ask("drain", "--run", run, *(f"raas-{number}" for number in range(1, MANY)))


def jobs() -> Mapping[str, Job]:
    """The three pools, and the one that grows and shrinks."""
    alone = job(1, MANY_STEPS, places=32, load=[[0, 1.0]])
    return {
        "auto": Job(job(SMALL, STEPS, auto=True)),
        "small": Job(job(SMALL, STEPS)),
        "large": Job(job(LARGE, STEPS)),
        "1-16-1": Job(alone, up_and_down),
    }


def quick() -> Mapping[str, Job]:
    """A short run."""
    return {"small": Job(job(SMALL, 4))}


def figures(run: dict[str, Any]) -> dict[str, float]:
    """Of a run from its first step to its last."""
    steps = run["steps"]
    wall = steps[-1]["at"]
    offset = first_step_s(run)
    seconds = 0.0
    for (at, size), (after, _) in pairwise([*run["pool"], [offset + wall, 0]]):
        seconds += size * max(0.0, min(after, offset + wall) - max(at, offset))
    longest = [after["at"] - before["at"] for before, after in pairwise(steps)]
    return {
        "wall_s": wall,
        "waiting": sum(step["wait_s"] for step in steps[1:]) / wall,
        "raas_s": seconds,
        "accuracy": run["evals"][-1]["accuracy"],
        "median_s": statistics.median(longest),
        "longest_s": max(longest),
    }


def first_step_s(run: dict[str, Any]) -> float:
    """When the first step ended, by the clock of the journal: the first report covers a window that began then."""
    return float(run["balance"][0]["began_s"]) if run["balance"] else 0.0


def report(runs: Runs, folder: Path) -> None:
    """``table.md`` and ``curves.svg``."""
    lines = [
        "# Autoscaling against fixed pools",
        "",
        "`python -m bench.studies.autoscaling`. From the first step to the last: RaaS-seconds, and the share of the",
        "trainer's time in which it waited. A step without waiting takes 1.5 s and what the services need.",
        "",
        "| pool | updates | wall, s | trainer waited | RaaS-seconds | held-out accuracy, end | step, median s | longest s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    order = [
        run for name in ("small", "large", "auto", "1-16-1") for run in runs if run["name"] == name
    ]
    for run in order:
        found = figures(run)
        lines.append(
            f"| {run['name']} | {run['summary']['steps']} | {found['wall_s']:.0f} | {100 * found['waiting']:.0f} % | "
            f"{found['raas_s']:.0f} | {found['accuracy']:.2f} | {found['median_s']:.2f} | {found['longest_s']:.1f} |"
        )
    (folder / "table.md").write_text("\n".join(lines) + "\n")
    pools, waits, longer, many = {}, {}, {}, {}
    for run in order:
        began = first_step_s(run)
        sizes = [(at - began, size) for at, size in run["pool"] if at >= began]
        before = [size for at, size in run["pool"] if at < began]
        stairs = [
            (0.0, before[-1] if before else 0),
            *sizes,
            (run["steps"][-1]["at"], (sizes or [(0, before[-1])])[-1][1]),
        ]
        stairs = [point for point in stairs if point[0] <= run["steps"][-1]["at"]]
        if run["name"] == "1-16-1":
            many["RaaS"] = stairs
            longer["seconds of a step"] = [
                (after["at"], after["at"] - before["at"])
                for before, after in pairwise(run["steps"])
            ]
            continue
        pools[run["name"]] = stairs
        waits[run["name"]] = [
            (each["at_s"] - began, max(p["waiting_fraction"] for p in each["policies"].values()))
            for each in run["balance"]
        ]
    panels = [
        Panel("RaaS", "seconds", pools, stairs=True),
        Panel(
            "trainer waited, share of three versions", "seconds", waits, marks={"grow above": 0.1}
        ),
    ]
    if many:
        panels += [
            Panel("1 → 16 → 1: RaaS", "seconds", many, stairs=True),
            Panel("1 → 16 → 1: steps", "seconds", longer, marks={"trainer's own": STEP_S}),
        ]
    (folder / "curves.svg").write_text(picture(panels))


STUDY = SystemStudy("autoscaling", jobs, quick, report)

if __name__ == "__main__":
    sys.exit(main(STUDY))
