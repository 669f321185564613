"""The runs of a study: made one after the other, stored in a file after each, and never repeated."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.studies.loop import Setting, train

RESULTS = Path(__file__).resolve().parents[1] / "results" / "studies"
SEEDS = (0, 1, 2)
Runs = list[dict[str, Any]]
"""Each with ``name``, ``seed``, ``setting`` and what :func:`bench.studies.loop.train` gives."""


@dataclass(frozen=True, slots=True)
class Study:
    """``settings`` of a seed by name, in order; ``quick`` ones are few and short. ``report`` writes tables and
    pictures of runs into a folder."""

    name: str
    settings: Callable[[int], Mapping[str, Setting]]
    quick: Callable[[int], Mapping[str, Setting]]
    report: Callable[[Runs, Path], None]


def main(study: Study, arguments: Sequence[str] | None = None) -> int:
    """The command line of a study."""
    parser = argparse.ArgumentParser(prog=f"python -m bench.studies.{study.name}")
    parser.add_argument("--quick", action="store_true", help="two short runs, not recorded")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS, help="default: 0 1 2")
    parser.add_argument("--report", action="store_true", help="make no run, write the report again")
    given = parser.parse_args(arguments)
    if given.quick:
        for run in make(study.quick(0), 0, []):
            print(json.dumps({key: run[key] for key in ("name", "rows", "points")}))
        return 0
    folder = RESULTS / study.name
    folder.mkdir(parents=True, exist_ok=True)
    runs = read(folder)
    for seed in () if given.report else given.seeds:
        for run in make(study.settings(seed), seed, runs):
            runs.append(run)
            write(folder, runs)
    study.report(runs, folder)
    return 0


def make(settings: Mapping[str, Setting], seed: int, done: Runs) -> Iterable[dict[str, Any]]:
    """Run what is not done yet."""
    known = {json.dumps([run["name"], run["seed"], run["setting"]]) for run in done}
    for name, setting in settings.items():
        described = {"name": name, "seed": seed, "setting": json.loads(json.dumps(asdict(setting)))}
        if json.dumps(list(described.values())) in known:
            continue
        print(f"{name}, seed {seed} …", file=sys.stderr, flush=True)
        run = described | asyncio.run(train(setting))
        last = run["points"][-1]
        print(
            f"  {run['cpu_s']} CPU-s, {last['rollouts']} rollouts, greedy {last['greedy']:.2f}, "
            f"at 0.6 {last['sampled']:.2f}",
            file=sys.stderr,
            flush=True,
        )
        yield run


def read(folder: Path) -> Runs:
    """What was made before."""
    file = folder / "runs.json"
    runs: Runs = json.loads(file.read_text()) if file.exists() else []
    return runs


def write(folder: Path, runs: Runs) -> None:
    """One run a line."""
    lines = ",\n".join(json.dumps(run) for run in runs)
    (folder / "runs.json").write_text(f"[\n{lines}\n]\n")


def of(runs: Runs, name: str) -> Runs:
    """The runs of one name, a seed each."""
    return [run for run in runs if run["name"] == name]
