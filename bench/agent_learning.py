"""The quickstart's task, learned by an agent with the OpenAI client, compared with the workflow `single_turn`.

`examples/agent_service.toml`, whose agent is a process with the unmodified client and nothing of ours, and
`examples/quickstart.toml`, seed by seed, each run until 0.9 of the held-out prompts are right, greedily sampled (evaluated
after each third update). `updates_over_single_turn`: the updates of the agent over those of `single_turn`; the largest of
the seeds. CPU seconds, those of the start included: `run_cpu_s` of the run's processes, `agent_cpu_s` of the agent,
`single_turn_cpu_s` of the run beside it; the most of the seeds. A quick run makes three small updates and has no ratio.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.gateway import REQUIREMENTS
from bench.quickstart import EXAMPLES
from bench.studies.records import Runs, of
from bench.support.environments import environment
from bench.support.learning import learned, record, updates_until
from bench.support.timing import cpu_of

TITLE = "nine's complement of five digits"
RESULTS = Path(__file__).parent / "results" / "agent_learning"
SEEDS = (0, 1, 2)
ACCURACY = 0.9
AGENT, SINGLE_TURN = "openai client", "single_turn"
QUICK = ("run.steps=3", "policies.solver.batch_sequences=64", "eval.sets.held_out.size=16")


def measure(quick: bool) -> dict[str, float]:
    """Both sides with each seed, one run at a time."""
    runs: Runs = []
    with service() as (process, url):
        for seed in SEEDS[:1] if quick else SEEDS:
            overrides = (f"run.seed={seed}", *(QUICK if quick else ("eval.every=3",)))
            if not quick:
                run = learned(EXAMPLES / "quickstart.toml", SINGLE_TURN, overrides, ACCURACY)
                runs.append({"seed": seed, **run})
            before = cpu_of(process.pid)
            overrides = (*overrides, f"workflow.url={url}")
            run = learned(EXAMPLES / "agent_service.toml", AGENT, overrides, ACCURACY)
            agent_cpu_s = round(cpu_of(process.pid) - before, 1)
            runs.append({"seed": seed, **run, "agent_cpu_s": agent_cpu_s})
            if not quick:
                record(RESULTS, TITLE, runs)
    return fields(runs)


def fields(runs: Runs) -> dict[str, float]:
    """The figures of runs, the worst of the seeds."""
    agents, beside = of(runs, AGENT), of(runs, SINGLE_TURN)
    found = {
        "seeds": float(len(agents)),
        "eval_first": max(run["points"][0]["greedy"] for run in agents),
        "eval_last": min(run["points"][-1]["greedy"] for run in agents),
        "run_cpu_s": max(run["cpu_s"] for run in agents),
        "agent_cpu_s": max(run["agent_cpu_s"] for run in agents),
    }
    if not beside:
        return found
    ours = {run["seed"]: updates_until(ACCURACY, run) for run in agents}
    theirs = {run["seed"]: updates_until(ACCURACY, run) for run in beside}
    worst = max(ours[seed] / theirs[seed] for seed in ours)
    return {
        "updates_over_single_turn": round(worst, 3),
        **found,
        "single_turn_cpu_s": max(run["cpu_s"] for run in beside),
        **{f"agent_updates_{seed}": float(updates) for seed, updates in ours.items()},
        **{f"single_turn_updates_{seed}": float(updates) for seed, updates in theirs.items()},
    }


@contextmanager
def service() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The agent's process, in an interpreter that has the client of OpenAI, and where it listens."""
    python = environment("openai", REQUIREMENTS)
    command = [str(python), str(EXAMPLES / "agent" / "service.py"), "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=sys.stderr, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()
