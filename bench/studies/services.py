"""Runs of real processes whose engines and trainers take a given time (:mod:`bench.support.paced`), what is read
of them afterwards, and the command line of a study that consists of such runs."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astraflow_runtime.dataflow.journal.entries import (
    Pushed,
    RaasDrained,
    RaasGone,
    RaasLeft,
    RaasRegistration,
)
from astraflow_runtime.dataflow.journal_reader import JournalReader
from bench.studies.records import RESULTS, Runs, read, write
from bench.support.processes import ROOT

RUN_S = 1200.0
SUMMARY = ("wall_s", "cpu_s", "steps", "lost", "max_staleness_seen", "trainer_wait_fraction")
MODEL = "tiny:qwen3?hidden=8&layers=1&heads=1&kv_heads=1"
TASK = """[prompts]
use = "digits"
digits = 3

[workflow]
use = "single_turn"

[reward]
use = "exact"
partial = "positions"

[sampling]
max_tokens = 4
"""
"""What one policy learns: tables of a config."""

During = Callable[[Path, subprocess.Popen[bytes]], None]
"""Called in a thread of its own with the directory of the run and its launcher."""


@dataclass(frozen=True, slots=True)
class Job:
    """A run: its config, and what is done to it meanwhile."""

    text: str
    during: During | None = None


@dataclass(frozen=True, slots=True)
class SystemStudy:
    """``jobs`` by name; ``quick`` ones are few and short. ``report`` writes tables and pictures into a folder."""

    name: str
    jobs: Callable[[], Mapping[str, Job]]
    quick: Callable[[], Mapping[str, Job]]
    report: Callable[[Runs, Path], None]


def policy(name: str, batch: int, engine: str, trainer: str, transport: str = "http") -> str:
    """The tables of a policy; ``engine`` and ``trainer`` are keys of :mod:`bench.support.paced`."""
    return f"""
[policies.{name}]
model = "{MODEL}"
batch_sequences = {batch}
engine = {{ use = "bench.support.paced:Engine", {engine} }}
trainer = {{ use = "bench.support.paced:Trainer", {trainer} }}
algorithm = {{ use = "astraflow_testing.table:TableAlgorithm" }}
transport = {{ use = "{transport}" }}
"""


def ran(job: Job) -> dict[str, Any]:
    """Make the run by `astraflow run`; JSON-like, what :func:`recorded` finds of it."""
    with tempfile.TemporaryDirectory(prefix="astraflow-study-") as folder:
        file = Path(folder) / "job.toml"
        file.write_text(job.text)
        process = subprocess.Popen(
            [sys.executable, "-m", "astraflow_runtime", "run", str(file), "--no-live"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
        )
        runs = Path(folder) / "runs"
        with ThreadPoolExecutor(1) as thread:
            done = thread.submit(job.during, runs, process) if job.during is not None else None
            try:
                if code := process.wait(RUN_S):
                    raise RuntimeError(f"the run ended with {code}")
            finally:
                if process.poll() is None:
                    process.terminate()
                    process.wait(30)
            if done is not None:
                done.result()
        (directory,) = runs.iterdir()
        return recorded(directory)


def recorded(directory: Path, *, summary: bool = True) -> dict[str, Any]:
    """Of a run: its ``steps`` and ``evals``, the size of its ``pool`` over time, the trained tokens that each RaaS
    ``pushed``, its balance reports, and figures of its summary. Times are
    seconds since the first step, those of the pool and of the reports since the dataflow began."""
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    figures = json.loads((directory / "summary.json").read_text()) if summary else {}
    pool, pushed = _pool(directory)
    stepped = [line for line in lines if "step" in line and not line["again"]]
    steps = [
        {
            "policy": line["policy"],
            "step": line["step"],
            "at": round(line["time"] - stepped[0]["time"], 3),
            "wait_s": round(line["metrics"]["wait_s"], 3),
            "publish_s": round(line["metrics"]["publish_s"], 4),
            "reward": round(line["reward"] or 0.0, 4),
            "staleness": line["staleness_max"],
        }
        for line in stepped
    ]
    evals = [
        {"version": line["eval"]["version"], "at": round(line["time"] - stepped[0]["time"], 3),
         "accuracy": line["eval"]["sets"]["held_out"]["avg"]}
        for line in lines if "eval" in line
    ]  # fmt: skip
    return {
        "steps": steps,
        "evals": evals,
        "pool": pool,
        "pushed": pushed,
        "balance": [line["balance"] for line in lines if "balance" in line],
        "summary": {name: figures[name] for name in SUMMARY if name in figures},
    }  # fmt: skip


def _pool(directory: Path) -> tuple[list[list[float]], dict[str, int]]:
    """[seconds of the run, RaaS there] at each change, and trained tokens by RaaS."""
    there: set[str] = set()
    sizes: list[list[float]] = []
    pushed: Counter[str] = Counter()
    for at_s, entry in JournalReader.of_run(directory).entries():
        if isinstance(entry, Pushed):
            pushed[entry.header.raas] += sum(entry.trained)
            continue
        if isinstance(entry, RaasRegistration):
            there.add(entry.message.raas)
        elif isinstance(entry, RaasLeft | RaasDrained):
            there.discard(entry.message.raas)
        elif isinstance(entry, RaasGone):
            there.discard(entry.raas)
        else:
            continue
        sizes.append([round(at_s, 2), len(there)])
    return sizes, dict(sorted(pushed.items()))


def main(study: SystemStudy) -> int:
    """The command line of a study."""
    parser = argparse.ArgumentParser(prog=f"python -m bench.studies.{study.name}")
    parser.add_argument("--quick", action="store_true", help="short runs, not recorded")
    parser.add_argument("--report", action="store_true", help="make no run, write the report again")
    given = parser.parse_args()
    folder = RESULTS / study.name
    folder.mkdir(parents=True, exist_ok=True)
    runs = [] if given.quick else read(folder)
    for name, job in (
        {} if given.report else study.quick() if given.quick else study.jobs()
    ).items():
        if any(run["name"] == name and run["config"] == job.text for run in runs):
            continue
        print(f"{name} …", file=sys.stderr, flush=True)
        run = {"name": name, "config": job.text, **ran(job)}
        print(f"  {run['summary']}", file=sys.stderr, flush=True)
        runs = [other for other in runs if other["name"] != name] + [run]
        if not given.quick:
            write(folder, runs)
    if given.quick:
        with tempfile.TemporaryDirectory() as scratch:
            study.report(runs, Path(scratch))
            for file in sorted(Path(scratch).glob("*.md")):
                print(file.read_text())
        return 0
    study.report(runs, folder)
    return 0
