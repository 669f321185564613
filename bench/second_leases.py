"""Do second leases shorten the wait for a batch, and do they change the trained data?

Whole runs in `bench/simulation`, of the real services, without faults: three RaaS, of which one takes four times as long as the
others (``slow``), or all of one pace (``equal``), with `run.max_staleness` 0, so that every batch waits for its own tasks, and with
episodes as in `fault_bias`. ``KIND_s`` are virtual seconds of an update with `run.second_leases` = 4, ``KIND_without_s`` those with 0;
``KIND_second_share`` is the share of the groups that came from a second lease.

A second lease draws its answers anew, so that a task which is leased twice *because* it takes long is likely to be replaced by a
shorter one. ``KIND_lengths_p`` is the p-value of a permutation test (2,000 permutations of runs) that the distribution of the
lengths is that of the runs without: the statistic is the squared distance of both cumulative distributions, summed over all
lengths and classes of prompts and scaled by their spread. ``KIND_length_shift`` is the difference of the mean length in tokens, of
4.25 on average, with the standard error ``KIND_length_error``. The same of ``any`` is with another rule for the slow pool: every last
task is leased twice as soon as a RaaS is free, whatever their paces. It shows that the test can detect such a bias.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Sequence
from unittest.mock import patch

import numpy as np

from astraflow_runtime.dataflow.tasks import second_leases
from bench.fault_bias import (
    CLASSES,
    GROUP,
    LONGEST,
    NONE,
    PROMPTS,
    Floats,
    class_of,
    lengths,
    p_value,
)
from bench.simulation.ledger import SampledRow
from bench.simulation.world import EQUAL, ONE_SLOW, Paces, SimulatedRun, simulate

SEEDS, QUICK_SEEDS = 32, 2
STEPS = 30
MOST = 4
KINDS: dict[str, tuple[Paces, int]] = {
    "slow": (ONE_SLOW, MOST),
    "slow_without": (ONE_SLOW, 0),
    "equal": (EQUAL, MOST),
    "equal_without": (EQUAL, 0),
    "any": (ONE_SLOW, MOST),
}


def measure(quick: bool) -> dict[str, float]:
    """Play the runs, and compare those with second leases to those without."""
    seeds = range(QUICK_SEEDS if quick else SEEDS)
    jobs = [(kind, seed) for kind in KINDS for seed in seeds]
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        played = pool.starmap(_play, jobs, chunksize=1)
    runs: dict[str, list[SimulatedRun]] = {kind: [] for kind in KINDS}
    for (kind, _), run in zip(jobs, played, strict=True):
        if run.violation is None:
            runs[kind].append(run)
        else:
            print(f"{kind}: seed {run.seed}: {run.violation}", file=sys.stderr)
    rng = np.random.default_rng(0)
    found = {"violations": float(sum(run.violation is not None for run in played))}
    for kind in ("slow", "equal", "any"):
        without = "equal_without" if kind == "equal" else "slow_without"
        found[f"{kind}_s"] = _update_s(runs[kind])
        found[f"{kind}_without_s"] = _update_s(runs[without])
        groups = sum(len(run.trained) // GROUP for run in runs[kind])
        found[f"{kind}_second_share"] = sum(run.second_won for run in runs[kind]) / groups
        those, before = _distributions(runs[kind]), _distributions(runs[without])
        found[f"{kind}_lengths_p"] = p_value(before, those, rng)
        mean, was = _means(runs[kind]), _means(runs[without])
        found[f"{kind}_length_shift"] = float(mean.mean() - was.mean())
        spread = mean.var(ddof=1) / len(mean) + was.var(ddof=1) / len(was)
        found[f"{kind}_length_error"] = float(np.sqrt(spread))
    return found


def _play(kind: str, seed: int) -> SimulatedRun:
    paces, most = KINDS[kind]
    if kind != "any":
        return simulate(
            seed, STEPS, NONE, lengths=lengths, staleness=0, paces=paces, second_leases=most
        )
    with patch.object(second_leases, "second_s", lambda *_: 0.0):
        return simulate(
            seed, STEPS, NONE, lengths=lengths, staleness=0, paces=paces, second_leases=most
        )


def _update_s(runs: Sequence[SimulatedRun]) -> float:
    return float(np.mean([run.virtual_s for run in runs])) / STEPS


def _rows(run: SimulatedRun) -> list[SampledRow]:
    return [row for row in run.trained if int(row.prompt) < PROMPTS]


def _distributions(runs: Sequence[SimulatedRun]) -> Floats:
    """Of each run: for each class of prompts the share of the lengths up to 1, 2, 3 … tokens."""
    found = []
    for run in runs:
        rows = _rows(run)
        shares = []
        for each in range(CLASSES):
            own = np.array([row.length for row in rows if class_of(row.prompt) == each])
            shares += [float((own <= most).mean()) for most in range(1, LONGEST * (each + 1))]
        found.append(shares)
    return np.array(found)


def _means(runs: Sequence[SimulatedRun]) -> Floats:
    return np.array([np.mean([row.length for row in _rows(run)]) for run in runs])
