"""Does a fault change the trained data? Prompts, lengths and rewards of the trained rows, with and without each kind of fault.

Whole runs in `bench/simulation`, of the real services. A quarter of the prompts has episodes of up to 3 tokens, the others
up to 6, 9 and 12; a token takes 0.2 s on average, so that the longest groups take 8 s. Each kind of fault comes alone, far
more often than on real machines: a kill or a partition every 12 s, a tenth of the messages or replies lost. Nothing is
dropped as too stale, but in ``staleness``, which has no faults and `run.max_staleness = 1`. A run trains 60 groups; the
first 36 prompts are looked at, since those still in flight when it ends are the long ones.

``KIND_missing`` is the share of the episodes of these prompts that was not trained. ``KIND_prompts_p`` and
``KIND_rewards_p`` are the p-values of a permutation test (2,000 permutations of runs, not of rows, which depend on one
another) that the shares of the four classes of prompts, and the mean reward, are those of the runs without faults.
``KIND_lengths_p`` is the same of the mean length within a class, and ``KIND_length_shift`` its difference in tokens, of
4.25 on average. A kill of a RaaS shortens what is trained: it is more likely to hit a long group, whose prompt is then
sampled anew. ``raas_length_expected`` is that shift for groups that each survive with the probability exp(-duration / mean
time between kills of its RaaS), computed without our services.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from bench.simulation.ledger import SampledRow
from bench.simulation.network import FaultRates
from bench.simulation.world import simulate

SEEDS, QUICK_SEEDS = 32, 2
STEPS = 30
PROMPTS = 36
"""The first prompts of a run of 60 groups: the last ones in flight at its end are the long ones."""
CLASSES, LONGEST = 4, 3
PERMUTATIONS = 2000
EVERY_S, HOSTS, TOKEN_S = 12.0, 3, float(np.exp(-1.5))
GROUP = 4
NONE = FaultRates(slow=0.0, lost=0.0, lost_reply=0.0, doubled=0.0, every_s=EVERY_S, kinds=())
KINDS = {
    "none": NONE,
    "raas": FaultRates(0.0, 0.0, 0.0, 0.0, EVERY_S, kinds=("raas",)),
    "trainer": FaultRates(0.0, 0.0, 0.0, 0.0, EVERY_S, kinds=("trainer",)),
    "dataflow": FaultRates(0.0, 0.0, 0.0, 0.0, EVERY_S, kinds=("dataflow",)),
    "partition": FaultRates(0.0, 0.0, 0.0, 0.0, EVERY_S, kinds=("cut",)),
    "messages": FaultRates(0.8, 0.1, 0.1, 0.4, EVERY_S, kinds=()),
    "staleness": NONE,
}
BOUND, UNBOUNDED = 1, 1000
Floats = npt.NDArray[np.float64]


def lengths(prompt: str, rng: random.Random) -> int:
    """Uniform, up to three tokens times the class of the prompt."""
    return rng.randint(1, LONGEST * (class_of(prompt) + 1))


def measure(quick: bool) -> dict[str, float]:
    """Play the runs, and compare each kind of fault with none."""
    seeds = range(QUICK_SEEDS if quick else SEEDS)
    jobs = [(kind, seed) for kind in KINDS for seed in seeds]
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        played = pool.starmap(_play, jobs, chunksize=1)
    features: dict[str, list[Floats]] = defaultdict(list)
    missing: dict[str, list[float]] = defaultdict(list)
    for (kind, seed), trained in zip(jobs, played, strict=True):
        if trained is None:
            print(f"{kind}: seed {seed} broke an invariant", file=sys.stderr)
            continue
        rows = [row for row in trained if int(row.prompt) < PROMPTS]
        missing[kind].append(1 - len(rows) / (PROMPTS * GROUP))
        features[kind].append(_features(rows))
    rng = np.random.default_rng(0)
    found: dict[str, float] = {"violations": float(sum(trained is None for trained in played))}
    without = np.stack(features["none"])
    for kind in KINDS:
        found[f"{kind}_missing"] = float(np.mean(missing[kind]))
        if kind == "none":
            continue
        those = np.stack(features[kind])
        prompts, rewards, long = slice(0, CLASSES), slice(CLASSES, CLASSES + 1), slice(-1, None)
        found[f"{kind}_prompts_p"] = p_value(without[:, prompts], those[:, prompts], rng)
        found[f"{kind}_rewards_p"] = p_value(without[:, rewards], those[:, rewards], rng)
        found[f"{kind}_lengths_p"] = p_value(without[:, long], those[:, long], rng)
        found[f"{kind}_length_shift"] = float((those - without.mean(0))[:, -1].mean())
    found["raas_length_expected"] = _expected_shift(HOSTS * EVERY_S, rng)
    return found


def _play(kind: str, seed: int) -> tuple[SampledRow, ...] | None:
    bound = BOUND if kind == "staleness" else UNBOUNDED
    run = simulate(seed, STEPS, KINDS[kind], lengths=lengths, staleness=bound)
    return run.trained if run.violation is None else None


def class_of(prompt: str) -> int:
    return int(prompt) % CLASSES


def _features(rows: Sequence[SampledRow]) -> Floats:
    """Of a run: the share of each class, the mean reward, and the mean over the classes of their mean lengths."""
    classes = np.array([class_of(row.prompt) for row in rows])
    sizes = np.array([row.length for row in rows], float)
    shares = np.bincount(classes, minlength=CLASSES) / len(rows)
    means = [sizes[classes == each].mean() for each in range(CLASSES)]
    return np.array([*shares, np.mean([row.reward for row in rows]), np.mean(means)])


def p_value(one: Floats, other: Floats, rng: np.random.Generator) -> float:
    """That both come from one distribution: how often runs dealt out anew are as far apart in their means."""
    together = np.concatenate([one, other])
    spread = together.std(0)
    scale = np.where(spread > 0, spread, 1.0)

    def apart(order: npt.NDArray[np.int64]) -> float:
        first, second = together[order[: len(one)]], together[order[len(one) :]]
        return float((((first.mean(0) - second.mean(0)) / scale) ** 2).sum())

    order = np.arange(len(together))
    seen = apart(order)
    further = sum(apart(rng.permutation(order)) >= seen for _ in range(PERMUTATIONS))
    return (1 + further) / (1 + PERMUTATIONS)


def _expected_shift(between_s: float, rng: np.random.Generator, groups: int = 200_000) -> float:
    """The shift of the mean length (tokens) if each group survives with exp(-duration / ``between_s``)."""
    shifts = []
    for each in range(CLASSES):
        sizes = rng.integers(1, LONGEST * (each + 1) + 1, (groups, GROUP))
        duration = rng.gamma(sizes.sum(1), TOKEN_S)
        weight = np.exp(-duration / between_s)
        shifts.append(np.average(sizes.mean(1), weights=weight) - sizes.mean())
    return float(np.mean(shifts))
