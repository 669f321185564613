"""What a run achieved: a table in words, a picture of its curves, and where everything lies."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from astraflow_core.errors import UserError
from astraflow_core.launch import curves
from astraflow_core.launch.figures import count, duration, number
from astraflow_core.launch.metrics import FILE as METRICS
from astraflow_core.launch.metrics import read_metrics

_FILES = {
    "summary.json": "all figures of the run",
    METRICS: "one line per step and per evaluation",
    curves.FILE: "the curves",
    "models": "the trained models, one Hugging Face folder each",
    "checkpoints": "to go on from",
    "config.toml": "the run as it was resolved",
    "plugins.json": "what provided its components",
    "logs": "what each process wrote",
}


def report_command(directory: str | Path, json_output: bool = False) -> int:
    """``astraflow report DIR``; raises :class:`UserError` if there is no ended run in it."""
    directory = Path(directory)
    if json_output:
        sys.stdout.write(json.dumps(read_summary(directory), indent=2) + "\n")
    else:
        write_report(directory, sys.stdout)
    return 0


def read_summary(directory: Path) -> dict[str, Any]:
    """``summary.json`` of a run directory."""
    file = directory / "summary.json"
    try:
        summary: dict[str, Any] = json.loads(file.read_text())
    except FileNotFoundError:
        raise UserError(
            f"there is no {file}; give the directory of a run that has ended, such as runs/NAME-DATE-TIME"
        ) from None
    except (OSError, json.JSONDecodeError) as error:
        raise UserError(f"{file} cannot be read: {error}") from error
    return summary


def write_report(directory: Path, stream: TextIO) -> None:
    """Draw the curves if there are any, and write the table."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    summary = read_summary(directory)
    metrics = read_metrics(directory)
    if metrics.steps:
        title = f"{summary['name']}, seed {summary['seed']}: {summary['steps']} steps, {summary['state']}"
        curves.draw_curves(
            metrics, title, summary["max_staleness_allowed"], directory / curves.FILE
        )
    console = Console(file=stream, soft_wrap=not stream.isatty())
    table = Table(title=Text(_headline(summary)), title_justify="left", show_header=False, box=None)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for label, text in _rows(summary):
        table.add_row(label, Text(text))
    console.print(table)
    files = Table(title=Text(f"in {directory}"), title_justify="left", show_header=False, box=None)
    for name, what in _FILES.items():
        if (directory / name).exists():
            files.add_row(f"  {name}", what)
    console.print(files)


def _headline(summary: Mapping[str, Any]) -> str:
    return f"{summary['name']}: {summary['state']} after {summary['steps']} of {summary['steps_planned']} steps"


def _rows(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if summary["error"]:
        yield "error", summary["error"].splitlines()[0]
    several = len(summary["policies"]) > 1
    for name, policy in summary["policies"].items():
        prefix = f"{name}: " if several else ""
        if policy["eval_last"] is not None:
            change = f"{number(policy['eval_first'])} → {number(policy['eval_last'])}"
            yield f"{prefix}held-out accuracy", f"{change}, on prompts that were never trained on"
        if policy["reward_last"] is not None:
            change = f"{number(policy['reward_first'])} → {number(policy['reward_last'])}"
            yield f"{prefix}reward", f"{change}, mean of the first and of the last steps"
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
    if summary["trainer_wait_fraction"] is not None:
        yield "trainer", f"waited for data {summary['trainer_wait_fraction']:.0%} of its time"
    restarts = f", {summary['restarts']} restarts" if summary["restarts"] else ""
    yield "processes", f"{summary['processes']}{restarts}"


def _prompts(summary: Mapping[str, Any]) -> str:
    parts = [
        f"{summary['admitted']} rolled out",
        f"{summary['accepted']} used",
        f"{summary['rejected']} rejected",
        f"{summary['failed'] + summary['set_aside']} failed",
        f"{summary['lost']} lost",
    ]
    return ", ".join(parts)
