"""``astraflow best-step``: the step of a run with the highest value of a metric."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable

from astraflow_core.errors import UserError
from astraflow_runtime.cli.output import print_json, print_table
from astraflow_runtime.cli.run_directory import add_run, find_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_run(parser)
    parser.add_argument("--metric", default="reward", metavar="NAME", help="default: reward")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the best step of each policy."""
    file = find_run(arguments.run) / "metrics.jsonl"
    if not file.exists():
        raise UserError(f"{file} does not exist: the run has made no step yet")
    with file.open(encoding="utf-8") as lines:
        best = best_steps(lines, arguments.metric)
    if not best:
        raise UserError(f"no step in {file} has the metric {arguments.metric!r}")
    if arguments.json:
        print_json({policy: {"step": s, "value": value} for policy, (s, value) in best.items()})
    else:
        rows = [(policy, step, f"{value:.4g}") for policy, (step, value) in best.items()]
        print_table(("policy", "step", arguments.metric), rows)
    return 0


def best_steps(lines: Iterable[str], metric: str) -> dict[str, tuple[int, float]]:
    """Policy → step and value, of the lines of ``metrics.jsonl``; the first of equal ones."""
    best: dict[str, tuple[int, float]] = {}
    for line in lines:
        if not line.endswith("\n"):  # a dataflow that was killed has not written it whole
            break
        entry = json.loads(line)
        value = {**entry.get("metrics", {}), **entry}.get(metric)
        if "policy" not in entry or not isinstance(value, int | float):
            continue
        if entry["policy"] not in best or value > best[entry["policy"]][1]:
            best[entry["policy"]] = (entry["step"], value)
    return best
