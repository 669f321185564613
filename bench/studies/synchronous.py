"""Asynchronous against colocated synchronous: ``python -m bench.studies.synchronous``.

The counterpart of table 2 of the AstraFlow paper: a solver and a verifier, both trained, with rollouts of long-tailed lengths.
Eight devices are simulated. *Colocated*: all of them roll out a batch (64 episodes at once), then each policy is trained on
all of them in turn (`[run] colocated`, `max_staleness = 0`). *Asynchronous*: four roll out (32 at once), two train each policy, staleness
at most 2. What a batch needs of a device is the same: rollouts R, training R / 2 a policy, so that both would need R / 4 an update
if no device ever waited, which is the ideal bound. Lengths are log-normal, cut at 20 medians; a token takes as
long however many episodes run. Dataflow, RaaS, trainers, transports and evaluation are the real ones.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench.studies.lines import Panel, picture
from bench.studies.records import Runs
from bench.studies.services import Job, SystemStudy, main, policy

POLICIES = ("solver", "verifier")
BATCH, PLACES, LONGEST = 128, 32, 20.0
TOKEN_S, MEDIAN = 0.001, 250
SIGMAS = (0.0, 0.5, 1.0, 1.25)
LEARNING = 1.0
"""Sigma of the long runs, which are evaluated."""
STEPS, SHORT, WARM_UP = 40, 12, 2


def mean_length(sigma: float) -> float:
    """In medians, of a log-normal length that is cut."""
    drawn = np.exp(sigma * np.random.default_rng(0).standard_normal(1_000_000))
    return float(np.minimum(drawn, LONGEST).mean())


def ideal_s(sigma: float, median: int) -> float:
    """Seconds per update if no device ever waits: two requests an episode."""
    return 2 * BATCH * mean_length(sigma) * median * TOKEN_S / PLACES


def job(sigma: float, colocated: bool, steps: int, median: int = MEDIAN) -> Job:
    """One run."""
    step_s = ideal_s(sigma, median) / (4 if colocated else 1)
    text = f"""
[run]
name = "study"
steps = {steps}
group_size = 8
colocated = {str(colocated).lower()}
max_staleness = {0 if colocated else 2}

[prompts]
use = "digits"
digits = 3

[workflow]
use = "solver_verifier"
template = "{{prompt}}{{answer}};"

[reward]
use = "exact"
partial = "positions"
each_policy = true

[sampling]
max_tokens = 4

[raas]
replicas = 2
max_concurrent_episodes = {PLACES if colocated else PLACES // 2}

[eval]
every = 10
sets.held_out = {{ use = "digits", digits = 3, split = "held_out", size = 64 }}
"""
    engine = f"token_s = {TOKEN_S}, median = {median}, sigma = {sigma}, longest = {LONGEST}"
    return Job(text + "".join(policy(n, BATCH, engine, f"step_s = {step_s:.4f}") for n in POLICIES))


def jobs() -> Mapping[str, Job]:
    """Long runs at one sigma, short ones at the others."""
    return {
        f"{'colocated' if colocated else 'asynchronous'}@{sigma}": job(
            sigma, colocated, STEPS if sigma == LEARNING else SHORT
        )
        for sigma in sorted(SIGMAS, key=lambda sigma: sigma != LEARNING)
        for colocated in (False, True)
    }


def quick() -> Mapping[str, Job]:
    """Two short runs."""
    return {
        "asynchronous@1.0": job(1.0, False, 4, 20),
        "colocated@1.0": job(1.0, True, 4, 20),
    }


def update_s(run: dict[str, Any]) -> float:
    """Mean seconds of an update of the policy that is slower."""
    of = [
        [s["at"] for s in run["steps"] if s["policy"] == name][WARM_UP - 1 :] for name in POLICIES
    ]
    return max(float(times[-1] - times[0]) / (len(times) - 1) for times in of)


def report(runs: Runs, folder: Path) -> None:
    """``table.md`` and ``curves.svg``."""
    lines = [
        "# Asynchronous against colocated synchronous",
        "",
        "`python -m bench.studies.synchronous`. Seconds per update after the first two; `ideal`: if no device ever waited.",
        "",
        "| lengths, sigma | run | updates | seconds per update | / ideal | held-out accuracy, end | staleness, most | speed-up |",
        "|---|---|---|---|---|---|---|---|",
    ]
    shown: dict[str, list[tuple[float, float]]] = {"asynchronous": [], "colocated": [], "ideal": []}
    for sigma in SIGMAS:
        found = {name: run for run in runs for name in shown if run["name"] == f"{name}@{sigma}"}
        for name, run in found.items():
            seconds = update_s(run)
            ideal = ideal_s(sigma, MEDIAN)
            shown[name].append((sigma, seconds))
            faster = update_s(found["colocated"]) / seconds if "colocated" in found else 0.0
            accuracy = run["evals"][-1]["accuracy"] if run["evals"] else 0.0
            lines.append(
                f"| {sigma} | {name} | {run['summary']['steps']} | {seconds:.2f} | {seconds / ideal:.2f} | "
                f"{accuracy:.3f} | {run['summary']['max_staleness_seen']} | {faster:.2f} |"
            )
        if found:
            shown["ideal"].append((sigma, ideal_s(sigma, MEDIAN)))
    (folder / "table.md").write_text("\n".join(lines) + "\n")
    learned = {
        name: [(e["at"], e["accuracy"]) for e in run["evals"]]
        for run in runs
        for name in ("asynchronous", "colocated")
        if run["name"] == f"{name}@{LEARNING}"
    }
    (folder / "curves.svg").write_text(
        picture(
            [
                Panel("seconds per update", "sigma of the lengths", shown),
                Panel("held-out accuracy", f"seconds, at sigma {LEARNING}", learned),
            ]
        )
    )


STUDY = SystemStudy("synchronous", jobs, quick, report)

if __name__ == "__main__":
    sys.exit(main(STUDY))
