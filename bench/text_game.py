"""A text game of six turns, learned through all services: credit for turns beside credit for episodes.

Runs of ``examples/environment.toml``, which credits turns (``turn_grpo``), and of the same with ``grpo``, which gives
all turns of an episode what the whole earned; nothing else differs. Each is kept in
``bench/results/studies/text_game/runs.json`` and not made again while the example stays as it is; ``curves.svg`` beside
it shows them.
"""

from __future__ import annotations

import statistics
import sys
import tomllib
from pathlib import Path
from typing import Any

from bench.studies.pictures import panels
from bench.studies.records import RESULTS, SEEDS, Runs, of, read, write
from bench.studies.tables import first, mean
from bench.support.text_game.runs import Curve, played

EXAMPLE = Path(__file__).parent.parent / "examples" / "environment.toml"
FOLDER = RESULTS / "text_game"
ALGORITHMS: dict[str, tuple[str, ...]] = {
    "turns": (),
    "episodes": (
        'policies.player.algorithm={ use = "grpo", entropy_coef = [[0, 0.2], [80, 0.2], [130, 0.05]] }',
    ),
}
"""Name of what is credited → overrides of the example."""
QUICK = ("run.steps=2", "eval.every=1")


def measure(quick: bool) -> dict[str, float]:
    """Of both over seeds 0, 1 and 2 (only 0 and two updates if ``quick``): the share of held-out levels that greedy
    decoding wins before the first update (the most) and after the last (the least), its mean over the evaluations for
    each seed, the updates until it was first at 0.9 (absent: never), the mean reward of the games trained on over the
    updates, and the CPU seconds of a run in all processes (the most)."""
    runs: Runs = [] if quick else read(FOLDER)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for seed in [0] if quick else SEEDS:
        for name in ALGORITHMS:
            described = description(name, seed)
            if any(described.items() <= run.items() for run in runs):
                continue
            print(f"{name}, seed {seed} …", file=sys.stderr, flush=True)
            keys = (*ALGORITHMS[name], f"run.seed={seed}", *(QUICK if quick else ()))
            runs.append(record(name, seed, played(*keys, config=EXAMPLE)))
            if not quick:
                write(FOLDER, runs)
    current = [run for run in runs if description(run["name"], run["seed"]).items() <= run.items()]
    if not quick:
        (FOLDER / "curves.svg").write_text(picture(current), encoding="utf-8")
    return figures(current)


def description(name: str, seed: int) -> dict[str, Any]:
    """What a run is known by: its name, its seed, and the example with the overrides."""
    setting = {
        "config": tomllib.loads(EXAMPLE.read_text(encoding="utf-8")),
        "overrides": list(ALGORITHMS[name]),
    }
    return {"name": name, "seed": seed, "setting": setting}


def record(name: str, seed: int, curve: Curve) -> dict[str, Any]:
    """A finished run, as studies keep one."""
    points = [{"update": update, "greedy": won} for update, won in sorted(curve.won.items())]
    totals = {
        "cpu_s": curve.cpu_s,
        "tokens_trained": curve.tokens_trained,
        "reward": round(curve.reward, 4),
    }
    return description(name, seed) | {"points": points} | totals


def figures(runs: Runs) -> dict[str, float]:
    """The fields of :func:`measure`."""
    result: dict[str, float] = {}
    for name in ALGORITHMS:
        own = of(runs, name)
        result[f"{name}_first_most"] = round(max(run["points"][0]["greedy"] for run in own), 3)
        result[f"{name}_last_least"] = round(min(run["points"][-1]["greedy"] for run in own), 3)
        result[f"{name}_mean"] = round(statistics.fmean(mean(run, "greedy") for run in own), 3)
        for run in own:
            result[f"{name}_mean_{run['seed']}"] = round(mean(run, "greedy"), 3)
            result[f"{name}_reward_{run['seed']}"] = round(run["reward"], 3)
            reached = first(run, "update")
            if reached is not None:
                result[f"{name}_updates_to_090_{run['seed']}"] = reached
        result[f"{name}_cpu_s_most"] = round(max(run["cpu_s"] for run in own), 1)
    return result


def picture(runs: Runs) -> str:
    """The curves: mean over the seeds, and from least to most."""
    lines = {"turns (turn_grpo)": "turns", "episodes (grpo)": "episodes"}
    return panels(runs, {"key and door: what is credited": lines}, "update", "update")
