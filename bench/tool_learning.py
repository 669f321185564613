"""SmolLM2-135M-Instruct learns to multiply with a calculator: ``examples/calculator.toml``, a real language model on a CPU.

``eval_first`` and ``eval_last``: the share of held-out products that are right, greedily decoded, before the first update
and after the last; ``eval_best`` the most in between. ``cpu_s`` is that of all processes of the run. The run is kept in
``bench/results/tool_learning/runs.json``, and ``curves.svg`` beside it shows it. A quick run makes one small update.
"""

from __future__ import annotations

from pathlib import Path

from bench.quickstart import EXAMPLES
from bench.support.learning import learned, record

TITLE = "products of two and three digits with a calculator"
RESULTS = Path(__file__).parent / "results" / "tool_learning"
NAME = "tools"
QUICK = (
    "run.steps=1",
    "policies.solver.batch_sequences=8",
    "policies.solver.data=[]",
    "eval.sets.held_out.size=8",
)


def measure(quick: bool) -> dict[str, float]:
    """One run of the example as it is, or one small step of it."""
    overrides = QUICK if quick else ()
    run = learned(EXAMPLES / "calculator.toml", NAME, overrides, deadline_s=7200.0)
    if not quick:
        record(RESULTS, TITLE, [{"seed": 0, **run}])
    accuracies = [point["greedy"] for point in run["points"]]
    return {
        "eval_first": accuracies[0],
        "eval_last": accuracies[-1],
        "eval_best": max(accuracies),
        "updates": float(run["points"][-1]["update"]),
        "cpu_s": run["cpu_s"],
    }
