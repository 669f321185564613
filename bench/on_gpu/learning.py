"""``python -m bench.on_gpu.learning [NAME …]``: SmolLM2-135M-Instruct learns from rewards alone, on a GPU.

The examples ``calculator.toml`` and ``code.toml`` with more and larger updates than a CPU could make in reasonable time. For each:
``first`` and ``last``, the share of held-out problems that greedy decoding solves before the first update and after the last,
the mean rewards of each update, CPU and wall seconds. Runs are kept in ``bench/results/gpu/learning/runs.json``; ``rewards.svg`` beside it
shows them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from bench.quickstart import EXAMPLES
from bench.studies import pictures, records
from bench.support.learning import learned

RESULTS = Path(__file__).parent.parent / "results" / "gpu" / "learning"
DEADLINE_S = 3600.0
COMMON = (
    "run.group_size=8",
    "policies.solver.batch_sequences=256",
    "policies.solver.engine.dtype=bfloat16",
    "policies.solver.engine.cache_gb=16",
    "policies.solver.engine.max_batch=512",
    "policies.solver.trainer.compute_dtype=bfloat16",
    "policies.solver.trainer.micro_batch_tokens=32768",
    "policies.solver.trainer.warmup_steps=4",
    "raas.max_concurrent_episodes=512",
)
CASES = {
    "calculator": (
        "run.steps=60",
        "policies.solver.trainer.lr=3e-5",
        "eval.every=20",
        "eval.sets.held_out.size=256",
    ),
    "code": (
        "run.steps=100",
        "policies.solver.trainer.lr=3e-5",
        "prompts.steps=2",
        "eval.every=20",
        "eval.sets.held_out.steps=2",
        "eval.sets.held_out.size=64",
    ),
}


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m bench.on_gpu.learning", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(CASES)} (default: all)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="more")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for results")
    parser.add_argument("--deadline", type=float, default=DEADLINE_S, metavar="SECONDS")
    asked = parser.parse_args()
    if unknown := set(asked.names) - CASES.keys():
        parser.error(f"no case {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    if not torch.cuda.is_available():
        print(f"torch {torch.__version__} finds no CUDA device", file=sys.stderr)
        return 2
    asked.out.mkdir(parents=True, exist_ok=True)
    names = asked.names or list(CASES)
    with ThreadPoolExecutor(len(names)) as pool:
        found = list(pool.map(lambda name: run(name, asked.more, asked.deadline), names))
    kept = [old for old in records.read(asked.out) if old["name"] not in names]
    records.write(asked.out, [*kept, *found])
    (asked.out / "rewards.svg").write_text(picture([*kept, *found]), encoding="utf-8")
    for case in found:
        print(json.dumps({key: value for key, value in case.items() if key != "rewards"}))
    return 0


def picture(runs: records.Runs) -> str:
    """The mean rewards, a panel for each run."""
    drawn = [
        {
            "name": run["name"],
            "points": [
                {"update": number, "greedy": reward}
                for number, reward in enumerate(run["rewards"], 1)
            ],
        }
        for run in runs
    ]
    wanted = {run["name"]: {"SmolLM2-135M-Instruct": run["name"]} for run in runs}
    return pictures.panels(drawn, wanted, "update", "updates", shown="mean reward of an update")


def run(name: str, more: list[str], deadline_s: float) -> dict[str, Any]:
    """A run of one case, and what was set in it."""
    overrides = (*COMMON, *CASES[name], *more)
    began = time.perf_counter()
    found = learned(EXAMPLES / f"{name}.toml", name, overrides, deadline_s=deadline_s)
    return {
        "seed": 0,
        **found,
        "first": found["points"][0]["greedy"],
        "last": found["points"][-1]["greedy"],
        "wall_s": round(time.perf_counter() - began, 1),
        "card": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "overrides": list(overrides),
    }


if __name__ == "__main__":
    sys.exit(main())
