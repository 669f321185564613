"""Concurrent rollout and training: a whole run with a sleeping engine, compared with the ideal and with a synchronous run.

What overlap can reach depends on how long a group takes, beside a batch. Of lengths that are log-normal with
sigma 1, the longest of a group of 8 is 4.7 medians on average and a sequence 1.65, so that a batch of ``B``
sequences takes ``1.65 B / 64`` medians of 64 places. With ``B = 64`` a group takes 2.8 batches' time: longer
than a staleness of 2 allows, whatever the system does (``over_ideal_at_64``, for comparison). With the
``B = 256`` of the main figures it takes 0.7.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from bench.support.processes import ROOT

CONFIG = """
[run]
name = "overlap"
group_size = 8
steps = {steps}
max_staleness = {max_staleness}
episode_deadline_s = 120

[prompts]
use = "bench.support.parts:Prompts"

[workflow]
use = "single_turn"

[reward]
use = "exact"

[sampling]
max_tokens = 1024

[policies.solver]
model = "tiny:qwen3?hidden=8&layers=1&heads=1&kv_heads=1&context=2048"
batch_sequences = {batch}
engine = {{ use = "bench.support.sleeping:Engine", token_s = {token_s} }}
trainer = {{ use = "astraflow_testing.table:TableTrainer", step_s = {step_s}, lr = 1e-6 }}
algorithm = {{ use = "astraflow_testing.table:TableAlgorithm" }}
transport = {{ use = "http" }}

[raas]
replicas = 2
max_concurrent_episodes = 32
"""
PLACES = 64
"""Episodes at once, in two RaaS."""

BATCH = 256
MAX_STALENESS = 2
RUN_S = 600.0


def measure(quick: bool) -> dict[str, float]:
    """Three runs on the same lengths: a trainer that takes no time (pure rollout, and from it the time that
    the trainer of the others takes for a step), asynchronous, synchronous.

    ``over_ideal``: asynchronous wall / max(pure rollout, pure training), after the warm-up.
    """
    warm_up, steps = (2, 6) if quick else (4, 40)
    token_s = 0.001 if quick else 0.003
    rollout = timed(BATCH, warm_up, steps, MAX_STALENESS, token_s, 0.0)
    step_s = rollout.wall_s / steps
    asynchronous = timed(BATCH, warm_up, steps, MAX_STALENESS, token_s, step_s)
    synchronous = timed(BATCH, warm_up, steps, 0, token_s, step_s)
    ideal = max(rollout.wall_s, steps * step_s)
    small = {} if quick else {"over_ideal_at_64": _over_ideal_at_64(warm_up, steps, token_s)}
    return {
        **small,
        "over_ideal": asynchronous.wall_s / ideal,
        "speedup_vs_sync": synchronous.wall_s / asynchronous.wall_s,
        "max_staleness_seen": asynchronous.summary["max_staleness_seen"],
        "max_staleness_allowed": MAX_STALENESS,
        "steps": steps,
        "rollout_s": rollout.wall_s,
        "train_s": steps * step_s,
        "async_s": asynchronous.wall_s,
        "sync_s": synchronous.wall_s,
        "longest_step_s": asynchronous.longest_step_s,
        "async_cpu_s": asynchronous.summary["cpu_s"],
        "trainer_wait_fraction": asynchronous.summary["trainer_wait_fraction"],
        "lost": asynchronous.summary["lost"] + synchronous.summary["lost"],
    }


def _over_ideal_at_64(warm_up: int, steps: int, token_s: float) -> float:
    rollout = timed(PLACES, warm_up, steps, MAX_STALENESS, token_s, 0.0)
    both = timed(PLACES, warm_up, steps, MAX_STALENESS, token_s, rollout.wall_s / steps)
    return both.wall_s / rollout.wall_s


@dataclass(frozen=True)
class Run:
    """A run that ended: seconds of the steps after the warm-up, and its summary.json."""

    wall_s: float
    longest_step_s: float
    summary: dict[str, float]


def timed(
    batch: int, warm_up: int, steps: int, max_staleness: int, token_s: float, step_s: float
) -> Run:
    """`astraflow run` as a user would call it, timed by when its steps were acknowledged."""
    text = CONFIG.format(
        batch=batch,
        steps=warm_up + steps,
        max_staleness=max_staleness,
        token_s=token_s,
        step_s=round(step_s, 6),
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "overlap.toml"
        file.write_text(text)
        subprocess.run(
            [sys.executable, "-m", "astraflow_runtime", "run", str(file), "--no-live"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            check=True,
            stdout=sys.stderr,
            timeout=RUN_S,
        )
        (directory,) = (Path(folder) / "runs").iterdir()
        lines = [json.loads(line) for line in (directory / "metrics.jsonl").open()]
        times = [line["time"] for line in lines if "step" in line][warm_up - 1 :]
        summary = json.loads((directory / "summary.json").read_text())
        longest = max(after - before for before, after in pairwise(times))
        return Run(times[-1] - times[0], longest, summary)
