"""``astraflow sample-thing``: the mean of a metric over the last steps of a run."""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable

from astraflow_core.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    from astraflow_runtime.cli.run_directory import add_run

    add_run(parser)
    parser.add_argument("--metric", default="reward", metavar="NAME", help="default: reward")
    parser.add_argument("--last", type=int, default=10, metavar="N", help="steps; default: 10")
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Print a line for each policy."""
    from astraflow_runtime.cli.output import print_table
    from astraflow_runtime.cli.run_directory import find_run

    if arguments.last < 1:
        raise UserError(f"--last {arguments.last}: expected at least 1")
    file = find_run(arguments.run) / "metrics.jsonl"
    if not file.exists():
        raise UserError(f"{file} does not exist: the run has made no step yet")
    with file.open(encoding="utf-8") as lines:
        found = means(lines, arguments.metric, arguments.last)
    if not found:
        raise UserError(f"no step in {file} has the metric {arguments.metric!r}")
    rows = [(policy, f"{value:.4g}") for policy, value in found.items()]
    print_table(("policy", arguments.metric), rows)
    return 0


def means(lines: Iterable[str], metric: str, last: int) -> dict[str, float]:
    """Policy to mean, of the lines of ``metrics.jsonl``."""
    values: dict[str, list[float]] = defaultdict(list)
    for line in lines:
        if not line.endswith("\n"):  # the run is writing it
            break
        entry = json.loads(line)
        value = {**entry.get("metrics", {}), **entry}.get(metric)
        if "policy" in entry and isinstance(value, int | float):
            values[entry["policy"]].append(value)
    return {policy: sum(kept[-last:]) / len(kept[-last:]) for policy, kept in values.items()}
