"""The tables of the studies, in Markdown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from bench.studies.records import Runs, of

REACHED = 0.9


def final(run: dict[str, Any], field: str) -> float:
    """A field of the last point."""
    return float(run["points"][-1][field])


def mean(run: dict[str, Any], field: str) -> float:
    """The mean of a field over the points: area under the curve."""
    return statistics.fmean(point[field] for point in run["points"])


def first(run: dict[str, Any], field: str, by: str = "greedy") -> int | None:
    """The value of ``field`` at the first point where ``by`` is at :data:`REACHED`."""
    for point in run["points"]:
        if point[by] >= REACHED:
            return int(point[field])
    return None


def spread(values: Sequence[float], digits: int = 2) -> str:
    """The mean, and least to most if they differ."""
    middle = f"{statistics.fmean(values):.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def each(values: Sequence[int | None]) -> str:
    """One per seed; a dash where it was never reached."""
    return ", ".join("–" if value is None else str(value) for value in values)


def staleness(runs: Runs, bounds: Sequence[int]) -> str:
    """Held-out accuracy by loss and staleness."""
    lines = [
        "# Losses on stale data",
        "",
        "`python -m bench.studies.staleness`; `runs.json` has every curve. After 60 updates, mean (least–most) over the",
        "seeds: mean reward of the rollouts that arrived in the last ten, held-out accuracy, greedy and sampled at 0.6.",
        "`greedy, mean`: over all evaluations, which says how early a run learned and whether it kept it. Then the",
        "updates after which greedy decoding was first at 0.9, one number a seed. `seen`: mean staleness of what was",
        "trained.",
        "",
        "| loss | staleness | seeds | seen | reward, end | greedy, end | at 0.6, end | greedy, mean | updates to 0.9 | clipped | masked |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for bound in bounds:
        for name in dict.fromkeys(run["name"] for run in runs):
            loss, _, at = name.partition("@")
            if at == str(bound):
                lines.append(_line(loss, bound, of(runs, name)))
    return "\n".join(lines) + "\n"


def _line(loss: str, bound: int, runs: Runs) -> str:
    def metric(name: str) -> str:
        values = [
            point["metrics"][name]
            for run in runs
            for point in run["points"]
            if name in point["metrics"]
        ]
        return f"{statistics.fmean(values):.2f}" if values else ""

    age = statistics.fmean(p["staleness"] for run in runs for p in run["points"][1:])
    cells = [
        f"`{loss}`",
        str(bound),
        str(len(runs)),
        f"{age:.1f}",
        spread([final(run, "reward") for run in runs]),
        spread([final(run, "greedy") for run in runs]),
        spread([final(run, "sampled") for run in runs]),
        spread([mean(run, "greedy") for run in runs]),
        each([first(run, "update") for run in runs]),
        metric("clip_fraction"),
        metric("masked_fraction"),
    ]
    return f"| {' | '.join(cells)} |"


def beside(own: Runs, value: str, others: Runs) -> list[float]:
    """How much higher a value ended than in the run of ``others`` with the same seed."""
    ends = {run["seed"]: final(run, value) for run in others}
    return [final(run, value) - ends[run["seed"]] for run in own if run["seed"] in ends]


STUDENT = (math.nan, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Quantile 0.975 of Student's t with as many degrees of freedom."""


def interval(values: Sequence[float]) -> str:
    """The mean with half of its 95 % interval (Student's t); the mean alone of one value or of equal ones."""
    mean, count = statistics.fmean(values), len(values)
    if count == 1 or len(set(values)) == 1:
        return f"{mean:.2f}"
    return f"{mean:.2f} ± {STUDENT[count - 1] * statistics.stdev(values) / math.sqrt(count):.2f}"


def data_policies(runs: Runs, names: Sequence[str]) -> str:
    """Accuracy and rollouts by data policy."""
    lines = [
        "# Data policies: held-out accuracy against rollouts",
        "",
        "`python -m bench.studies.data_policies`; `runs.json` has every curve. After so many updates of 256 rows, mean",
        "(least–most) over the seeds: rollouts, mean reward of those since the evaluation before, held-out accuracy,",
        "greedy and sampled at 0.6. Then the rollouts after which that reward was first at 0.9, and the rollouts and",
        "updates after which greedy decoding was, one number a seed. `− vanilla`: the difference of greedy accuracy to vanilla",
        "of the same seed at the end, with its 95 % interval; that of the reward likewise.",
        "",
        "| data policies | seeds | updates | rollouts | / vanilla | reward, end | greedy, end | at 0.6, end | reward − vanilla | greedy − vanilla | rollouts to reward 0.9 | to greedy 0.9 | updates |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    vanilla = of(runs, "vanilla")
    base = statistics.fmean(final(run, "rollouts") for run in vanilla)
    for name in names:
        own = of(runs, name)
        if not own:
            continue
        rollouts = [final(run, "rollouts") for run in own]
        cells = [
            f"`{name}`",
            str(len(own)),
            str(own[0]["points"][-1]["update"]),
            spread(rollouts, 0),
            f"{statistics.fmean(rollouts) / base:.2f}",
            spread([final(run, "reward") for run in own]),
            spread([final(run, "greedy") for run in own]),
            spread([final(run, "sampled") for run in own]),
            interval(beside(own, "reward", vanilla)),
            interval(beside(own, "greedy", vanilla)),
            each([first(run, "rollouts", "reward") for run in own]),
            each([first(run, "rollouts") for run in own]),
            each([first(run, "update") for run in own]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
