"""The last lines of a run: its figures if it came to an end that was wanted, and else where to look and how to continue."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from astraflow_core.config.models import RunConfig
from astraflow_runtime.launch.planning.resume import can_resume

KILLED = "killed"
"""State of a run that a second signal ended, in its summary."""


def conclude(
    summary: Mapping[str, Any],
    directory: Path,
    config: RunConfig,
    stream: TextIO,
    json_output: bool = False,
) -> None:
    """Write them; the cause of a failure has already been reported. With ``json_output`` a program has the figures."""
    state = summary["state"]
    if state == KILLED:
        stream.write(f"killed; its files are in {directory}\n")
    elif state == "failed":
        _write_failure(summary, directory, stream)
    elif not json_output and (directory / "summary.json").exists():
        from astraflow_runtime.launch.results.report import write_report

        write_report(directory, stream)
    if state != "finished" and (offer := _offer(summary, directory, config)):
        stream.write(f"{offer}: astraflow run --resume {directory}\n")


def _write_failure(summary: Mapping[str, Any], directory: Path, stream: TextIO) -> None:
    steps = summary["steps"]
    when = (
        f"after {steps} of {summary['steps_planned']} steps" if steps else "before its first step"
    )
    stream.write(f"{summary['name']}: failed {when}\n")
    stream.write(f"  logs of all processes: {directory / 'logs'}\n")
    if steps:
        stream.write(f"  its metrics so far: astraflow report --run {directory}\n")


def _offer(summary: Mapping[str, Any], directory: Path, config: RunConfig) -> str:
    """What to say before the command that continues; empty if there is nothing to continue with. A failed run would meet its
    cause again, and without an update a new run has lost nothing."""
    if not can_resume(config, directory):
        return ""
    if summary["state"] != "failed":
        return "to continue"
    return "after fixing the cause, resume with" if summary["steps"] else ""
