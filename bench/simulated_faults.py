"""Faults in a simulation of the services in one process, with all invariants checked after every event.

`bench/simulation` plays whole runs of one dataflow, three RaaS and one trainer on a virtual clock: their real loops, clients, HTTP
app, state, journal and checkpoints, with toys in the place of engine, model and transport. A seed decides all faults: slow,
reordered, lost and doubled messages, lost answers, partitions, and kills of each process at any of its awaits. One process
plays on each core; `faults_per_minute` is of all together, in wall time, and `faults_per_cpu_minute` of one CPU. A slow message is
late by 0.2 to 2 s where others take 20 ms. In half of the runs one RaaS takes four times as long as the others, so that its
last tasks of a batch are leased a second time. `violations` counts runs in which an invariant did not hold; their seeds are printed, and
`python -m bench.simulation SEED` plays one again.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time

from bench.simulation.world import paces_of, simulate

SEEDS, QUICK_SEEDS = 60, 8
FIRST = 1000


def measure(quick: bool) -> dict[str, float]:
    """Play the runs of many seeds."""
    seeds = range(FIRST, FIRST + (QUICK_SEEDS if quick else SEEDS))
    context = multiprocessing.get_context("spawn")
    with context.Pool(os.cpu_count()) as pool:
        pool.map(_ready, range(os.cpu_count() or 1))
        began = time.monotonic()
        runs = pool.map(_play, seeds, chunksize=1)
        wall_s = time.monotonic() - began
    faults = sum(run[1] for run in runs)
    for seed, _, _, _, violation in runs:
        if violation:
            print(f"seed {seed}: {violation}", file=sys.stderr)
    return {
        "faults_per_minute": 60 * faults / wall_s,
        "faults_per_cpu_minute": 60 * faults / sum(run[2] for run in runs),
        "violations": float(sum(bool(run[4]) for run in runs)),
        "faults": float(faults),
        "events": float(sum(run[3] for run in runs)),
        "runs": float(len(runs)),
    }


def _ready(_: int) -> None:
    """A process has imported everything, and made what the first run makes."""
    simulate(FIRST - 1, steps=2)


def _play(seed: int) -> tuple[int, int, float, int, str]:
    began = time.process_time()
    run = simulate(seed, paces=paces_of(seed))
    spent = time.process_time() - began
    return seed, sum(run.faults.values()), spent, run.events, str(run.violation or "")
