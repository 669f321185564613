"""What a run achieved: a table in words, a picture of its curves, and where everything lies."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import msgspec

from astraflow_core.errors import UserError
from astraflow_runtime.launch.results import curves
from astraflow_runtime.launch.results.held_out import verdict
from astraflow_runtime.launch.results.metrics import FILE as METRICS
from astraflow_runtime.launch.results.metrics import left_out, read_metrics
from astraflow_runtime.launch.view.formatting import (
    count,
    duration,
    episode_metrics,
    number,
    sampled,
)
from astraflow_runtime.telemetry.printable import printable
from astraflow_wire.host.disk import is_full
from astraflow_wire.policy_status import PolicyStatus

_METRICS = 16
_FILES = {
    "summary.json": "all metrics of the run",
    METRICS: "one line per step and per evaluation",
    curves.FILE: "the curves",
    "models": "the trained models, one Hugging Face folder each",
    "checkpoints": "checkpoints to resume from",
    "config.toml": "the resolved configuration",
    "plugins.json": "the packages that provided its components",
    "logs": "logs of all processes",
}


def report_command(directory: str | Path, json_output: bool = False) -> int:
    """``astraflow report``; raises :class:`UserError` if there is no ended run in it."""
    directory = Path(directory)
    if json_output:
        sys.stdout.write(json.dumps(read_summary(directory), indent=2) + "\n")
    else:
        if damage := left_out(read_metrics(directory), directory):
            sys.stdout.write(f"{damage}\n")
        draw_report(directory, sys.stdout)
        write_report(directory, sys.stdout)
    return 0


REPORTED = (
    "name", "seed", "state", "error", "steps", "steps_planned", "policies", "eval_overlap", "setup_s", "wall_s",
    "cpu_s", "tokens_generated", "tokens_trained", "max_staleness_seen", "max_staleness_allowed", "quarantined",
    "trainer_wait_fraction", "restarts", "processes", "admitted", "accepted", "rejected", "failed", "set_aside",
)  # fmt: skip
"""Fields of a summary that a report shows."""


def read_summary(directory: Path) -> dict[str, Any]:
    """``summary.json`` of a run directory."""
    file = directory / "summary.json"
    try:
        summary: dict[str, Any] = json.loads(file.read_text())
    except FileNotFoundError:
        if (directory / "dataflow.json").exists():
            raise UserError(
                f"the run in {directory} has not ended, or was killed: `astraflow top --run {directory}` shows a running run, "
                f"`astraflow run --resume {directory}` continues one that was killed"
            ) from None
        raise UserError(
            f"there is no {file}; give the directory of a run that has ended, such as runs/NAME-DATE-TIME"
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read: {error}") from error
    if not isinstance(summary, dict):
        raise UserError(f"{file} is damaged: it is a JSON {type(summary).__name__}, not an object")
    return summary


def read_whole_summary(directory: Path) -> dict[str, Any]:
    """The same; :class:`UserError` if a field that a report shows is not there."""
    summary = read_summary(directory)
    if missing := missing_fields(summary):
        raise UserError(
            f"{directory / 'summary.json'} is damaged, or of another version: it has no {missing[0]!r}; the run's "
            "metrics.jsonl has its steps"
        )
    return summary


def missing_fields(summary: Mapping[str, Any]) -> list[str]:
    """Fields that a report shows and that a summary lacks."""
    return [name for name in REPORTED if name not in summary]


def draw_report(directory: Path, stream: TextIO) -> None:
    """Draw the curves of a run that has ended, if there are any."""
    summary, metrics = read_whole_summary(directory), read_metrics(directory)
    if not metrics.steps:
        return
    title = (
        f"{summary['name']}, seed {summary['seed']}: {summary['steps']} steps, {summary['state']}"
    )
    picture = directory / curves.FILE
    try:
        curves.draw_curves(metrics, title, summary["max_staleness_allowed"], picture)
    except OSError as error:
        if not is_full(error, directory):
            raise
        picture.unlink(missing_ok=True)
        stream.write(
            f"no disk space for {picture}; run `astraflow report --run {directory}` later to draw it\n"
        )


def write_report(directory: Path, stream: TextIO) -> None:
    """Write the table."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    summary = read_whole_summary(directory)
    console = Console(file=stream, soft_wrap=not stream.isatty())
    table = Table(
        title=Text(printable(headline(summary))), title_justify="left", show_header=False, box=None
    )
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for label, text in summary_rows(summary):
        table.add_row(label, Text(printable(text)))
    console.print(table)
    # On a separate line that only the terminal wraps, so that it can be copied.
    console.print(Text("in"), Text(str(directory)), soft_wrap=True)
    files = Table(show_header=False, box=None)
    for name, what in _FILES.items():
        if (directory / name).exists():
            files.add_row(f"  {name}", what)
    console.print(files)


def headline(summary: Mapping[str, Any]) -> str:
    """The run in a line."""
    return f"{summary['name']}: {summary['state']} after {summary['steps']} of {summary['steps_planned']} steps"


def summary_rows(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What the run achieved: labels and texts."""
    if summary["error"]:
        yield "error", summary["error"].splitlines()[0]
    several = len(summary["policies"]) > 1
    label, held_out = _held_out(summary["eval_overlap"])
    for name, policy in summary["policies"].items():
        prefix = f"{name}: " if several else ""
        if policy["eval_last"] is not None:
            change = f"{number(policy['eval_first'])} → {number(policy['eval_last'])}"
            yield prefix + label, f"{change}{held_out}"
        if policy["reward_last"] is not None:
            change = f"{number(policy['reward_first'])} → {number(policy['reward_last'])}"
            yield f"{prefix}reward", f"{change}, mean of the first and of the last steps"
        if policy["completion_length_mean"] is not None:
            yield f"{prefix}sampled", _sampled(policy)
        if policy["episode_metrics"]:
            yield f"{prefix}episodes", _episodes(policy)
        yield f"{prefix}versions", f"{policy['version']} published after the initial model"
    setup = (
        "" if summary["setup_s"] is None else f", the first {duration(summary['setup_s'])} to start"
    )
    yield (
        "time",
        f"{duration(summary['wall_s'])}{setup}; {summary['cpu_s']:.0f} CPU seconds in all processes",
    )
    yield (
        "tokens",
        f"{count(summary['tokens_generated'])} sampled, {count(summary['tokens_trained'])} trained",
    )
    yield (
        "staleness",
        f"at most {summary['max_staleness_seen']} versions behind (allowed: {summary['max_staleness_allowed']})",
    )
    yield "prompts", _prompts(summary)
    if summary.get("eval_failed"):
        yield "evaluations", _failed_evaluations(summary)
    if failures := summary.get("environment_failures"):
        yield "environments", _environments(failures, summary["quarantined"])
    if summary["trainer_wait_fraction"] is not None:
        yield "trainer", f"waited for data {summary['trainer_wait_fraction']:.0%} of its time"
    restarts = f", {summary['restarts']} restarts" if summary["restarts"] else ""
    yield "processes", f"{summary['processes']}{restarts}"
    for name, tracker in summary.get("trackers", {}).items():
        yield f"tracker {name}", _tracker(tracker)
    for name, policy in summary["policies"].items():
        if policy["equal_groups_fraction"] == 1.0 and policy["pass_rate"] != 1.0:
            yield f"{name}: next" if several else "next", _EQUAL


_EQUAL = (
    "in the last step the rewards within each group were equal, so there is nothing to learn from: look at episodes "
    "with `astraflow trace`, and see docs/does-not-learn.md"
)


def _held_out(overlap: Mapping[str, Any]) -> tuple[str, str]:
    """What to call the accuracy, and what to say of the prompts."""
    if why_not := verdict(overlap):
        return "accuracy", f"; not held out: {why_not}"
    return "held-out accuracy", ", on prompts that were not used for training" if overlap else ""


def _failed_evaluations(summary: Mapping[str, Any]) -> str:
    """How many prompts gave no result, and why the last of each set did not."""
    last = {
        name: one
        for each in summary["evals"]
        for name, one in each["sets"].items()
        if one["failed"]
    }
    errors = "; ".join(
        f"{name!r} at last: {one['failed']} of {one['n'] + one['failed']}, {' '.join(one['last_error'].split())}"
        for name, one in last.items()
    )
    return f"{summary['eval_failed']} prompts failed and count in no accuracy; {errors}"


def _sampled(policy: Mapping[str, Any]) -> str:
    return f"in the last step {sampled(msgspec.convert(policy, PolicyStatus))}"


def _episodes(policy: Mapping[str, Any]) -> str:
    return f"{episode_metrics(msgspec.convert(policy, PolicyStatus), _METRICS)}; means of the last batch"


def _environments(failures: Mapping[str, int], quarantined: int) -> str:
    kinds = ", ".join(f"{kind} {n}" for kind, n in sorted(failures.items(), key=lambda e: -e[1]))
    return f"failed {sum(failures.values())} task attempts ({kinds}); {quarantined} prompts quarantined"


def _tracker(report: Mapping[str, Any]) -> str:
    steps = sum(report["steps"].values())
    said = f"{report['state']}: {report['error']}" if report["error"] else report["state"]
    place = f"; {report['place']}" if report["place"] else ""
    return f"{said}, {steps} steps, {report['rollouts']} rollouts, {report['spans']} spans{place}"


def _prompts(summary: Mapping[str, Any]) -> str:
    failed = summary["failed"] + summary["set_aside"]
    ended = summary["accepted"] + summary["rejected"] + failed + summary["lost"]
    unfinished = summary["admitted"] - ended
    parts = [
        f"{summary['admitted']} admitted",
        f"{summary['accepted']} used",
        f"{summary['rejected']} rejected",
        f"{failed} failed",
        f"{summary['lost']} lost",
        f"{unfinished} unfinished",
    ]
    return ", ".join(parts)
