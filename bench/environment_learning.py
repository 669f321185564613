"""Learning in environments: held-out accuracy and reward of runs through all services, after a short imitation.

A case is a configuration of ``bench/support/environment_learning`` and the demonstrator of its tasks there: ``coin`` (a
house in text, environment `adventure`), ``sql`` (lists of columns, answered by queries that are executed), ``code``
(functions, completed and executed in the sandbox). A small transformer imitates demonstrations of the training split
for a few updates; training on its own episodes goes on from there. For each case: ``NAME_first`` and ``NAME_last``, the
share of held-out tasks that greedy decoding solves before the first update and after the last, ``NAME_reward_first``
and ``NAME_reward_last``, the mean reward of the trajectories trained on in the first and the last tenth of the updates,
all as means over the seeds; ``NAME_least_gain``: the least that a seed gained on held-out tasks; ``NAME_cpu_s`` of the
run in all processes, and ``NAME_imitation_cpu_s``, the most of a seed. Runs are kept in
``bench/results/environment_learning/runs.json`` and not made again while their case stays as it is; ``curves.svg``
beside it shows them.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.studies.pictures import panels
from bench.studies.records import Runs, of, read, write
from bench.support.environment_learning.experts import demonstrations
from bench.support.learning import learned
from bench.support.warm_start import Imitation, write_warm_model

CONFIGS = Path(__file__).parent / "support" / "environment_learning"
FOLDER = Path(__file__).parent / "results" / "environment_learning"
SEEDS = {"coin": (0,), "sql": (0, 1, 2), "code": (0, 1, 2)}
SMOOTHED = 5
"""Updates that a point of a curve of rewards stands for."""
CASES: Mapping[str, Imitation] = {
    "coin": Imitation(updates=50),
    "sql": Imitation(updates=150, words=258, hidden=64),
    "code": Imitation(updates=100, words=320, hidden=64, dialogues=20),
}
QUICK = ("run.steps=2", "eval.every=1", "eval.sets.held_out.size=8")


def measure(quick: bool) -> dict[str, float]:
    """All cases with all seeds; a quick run imitates for three updates and learns for two, of the first case and seed."""
    runs: Runs = [] if quick else read(FOLDER)
    cases = {"coin": Imitation(updates=3)} if quick else CASES
    for name, how in cases.items():
        for seed in SEEDS[name][:1] if quick else SEEDS[name]:
            described = description(name, how, seed)
            if not any(described.items() <= run.items() for run in runs):
                print(f"{name}, seed {seed} …", file=sys.stderr, flush=True)
                runs.append(described | played(name, how, seed, QUICK if quick else ()))
                if not quick:
                    FOLDER.mkdir(parents=True, exist_ok=True)
                    write(FOLDER, runs)
    current = [
        run
        for run in runs
        if run["name"] in cases
        and description(run["name"], cases[run["name"]], run["seed"]).items() <= run.items()
    ]
    if not quick:
        write(FOLDER, current)
        (FOLDER / "curves.svg").write_text(picture(current), encoding="utf-8")
    return figures(current)


def description(name: str, how: Imitation, seed: int) -> dict[str, Any]:
    """What a run is known by: its name, its seed, its configuration and how it began."""
    config = tomllib.loads((CONFIGS / f"{name}.toml").read_text(encoding="utf-8"))
    imitation = {key: value for key, value in asdict(how).items() if value is not None}
    return {"name": name, "seed": seed, "setting": {"config": config, "imitation": imitation}}


def played(name: str, how: Imitation, seed: int, overrides: tuple[str, ...]) -> dict[str, Any]:
    """A model that has imitated, and its run."""
    file = CONFIGS / f"{name}.toml"
    config = tomllib.loads(file.read_text(encoding="utf-8"))
    (policy,) = config["policies"]
    with tempfile.TemporaryDirectory(prefix="astraflow-bench-") as folder:
        before = time.process_time()
        dialogues = asyncio.run(demonstrations(name, config))
        loss = write_warm_model(Path(folder), dialogues, how, seed)
        imitation_cpu_s = round(time.process_time() - before, 1)
        keys = (f"run.seed={seed}", f"policies.{policy}.model={json.dumps(folder)}", *overrides)
        run = learned(file, name, keys)
    return run | {"imitation_cpu_s": imitation_cpu_s, "imitation_loss": round(loss, 4)}


def figures(runs: Runs) -> dict[str, float]:
    """The fields of :func:`measure`."""
    found: dict[str, float] = {}
    for name in dict.fromkeys(run["name"] for run in runs):
        own = of(runs, name)
        greedy = [[point["greedy"] for point in run["points"]] for run in own]
        found[f"{name}_first"] = _mean(points[0] for points in greedy)
        found[f"{name}_last"] = _mean(points[-1] for points in greedy)
        found[f"{name}_least_gain"] = round(min(points[-1] - points[0] for points in greedy), 3)
        found[f"{name}_reward_first"] = _mean(_tenth(run, 0) for run in own)
        found[f"{name}_reward_last"] = _mean(_tenth(run, -1) for run in own)
        found[f"{name}_updates"] = float(len(own[0]["rewards"]))
        found[f"{name}_cpu_s"] = max(run["cpu_s"] for run in own)
        found[f"{name}_imitation_cpu_s"] = max(run["imitation_cpu_s"] for run in own)
        found[f"{name}_seeds"] = float(len(own))
    return found


def _mean(values: Iterable[float]) -> float:
    return round(statistics.fmean(values), 3)


def _tenth(run: dict[str, Any], which: int) -> float:
    """The mean reward over the first or the last tenth of the updates."""
    rewards = run["rewards"]
    many = max(1, len(rewards) // 10)
    return float(sum(rewards[:many] if which == 0 else rewards[-many:]) / many)


def picture(runs: Runs) -> str:
    """The curves: mean over the seeds, and from least to most."""
    titles = {
        "coin": "adventure: find the coin",
        "sql": "sql: lists of columns",
        "code": "code_tests: functions in two operations",
    }
    shown = [title for title in titles if of(runs, title)]
    lines = {
        titles[name]: {
            "held-out tasks, greedy": name,
            f"reward in training, mean of {SMOOTHED} updates": f"{name} reward",
        }
        for name in shown
    }
    rewards = [
        {"name": f"{run['name']} reward", "points": _smoothed(run["rewards"])} for run in runs
    ]
    return panels([*runs, *rewards], lines, "update", "update", shown="share solved, reward")


def _smoothed(rewards: list[float]) -> list[dict[str, float]]:
    """Means of successive updates, at the last of each."""
    ends = range(SMOOTHED, len(rewards) + 1, SMOOTHED)
    return [
        {"update": end, "greedy": sum(rewards[end - SMOOTHED : end]) / SMOOTHED} for end in ends
    ]
