"""``astraflow_runtime.run``, ``resume`` and ``load_run``: a run from a program or a notebook."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from astraflow_core.errors import UserError
from astraflow_runtime.launch.planning.prepare import prepare
from astraflow_runtime.launch.planning.resume import resume as resumed
from astraflow_runtime.launch.results.metrics import read_metrics
from astraflow_runtime.launch.results.notebook import RunViews
from astraflow_runtime.launch.results.report import read_whole_summary
from astraflow_runtime.launch.run import EndedRun, run_prepared


@dataclass(frozen=True, slots=True)
class RunResult(RunViews):
    """A run that finished or was interrupted. ``summary`` as in ``summary.json``, ``metrics`` the lines of
    ``metrics.jsonl``, ``exit_code`` 0, or 130 after Ctrl-C. A notebook shows it as a table with its curves."""

    summary: dict[str, Any]
    directory: Path
    exit_code: int
    metrics: list[dict[str, Any]] = field(repr=False)


@dataclass(frozen=True, slots=True)
class LoadedRun(RunViews):
    """A past or running run. ``summary`` as in ``summary.json``, empty if the run has not ended; ``metrics``
    the lines of ``metrics.jsonl`` when it was loaded."""

    summary: dict[str, Any] = field(repr=False)
    directory: Path
    metrics: list[dict[str, Any]] = field(repr=False)


def run(
    config: str | Path | Mapping[str, Any],
    *,
    workflow: Any = None,
    reward: Any = None,
    overrides: Sequence[str] = (),
    live: bool | None = None,
) -> RunResult:
    """Run a TOML file, or the same as a mapping, and return when nothing of it is left running.

    ``workflow`` is an async function ``(engines, prompt) -> Trajectory`` or an object with
    ``run_episode``; ``reward`` a function of a :class:`TrajectoryView` or an object with ``score``. They
    take the place of ``[workflow]`` and ``[reward]`` and go to the run's own processes by cloudpickle.
    ``overrides`` are texts such as ``"run.steps=10"``. ``live``: a moving picture, plain lines, or
    (``None``) whichever fits the output. In the main thread Ctrl-C finishes the run cleanly, a second
    one at once.

    Raises :class:`astraflow_core.errors.UserError` before anything starts if something is wrong with
    the config, and :class:`astraflow_core.errors.RunFailed` or its like if the run fails.
    """
    return result_of(run_prepared(prepare(config, overrides, workflow, reward), live, sys.stdout))


def resume(directory: str | Path, *, live: bool | None = None) -> RunResult:
    """Resume the run of a directory that ended early, and return like :func:`run`.
    Trainers continue from their last checkpoints; everything else from the journal."""
    return result_of(run_prepared(resumed(directory), live, sys.stdout))


def load_run(directory: str | Path) -> LoadedRun:
    """Load the run in a directory, live or ended, for reading: nothing of it is changed. :class:`UserError` if there is none."""
    folder = Path(directory).expanduser()
    if not any((folder / mark).is_file() for mark in ("config.toml", "summary.json")):
        raise UserError(
            f"there is no run in {folder}; give the directory of one, such as runs/NAME-DATE-TIME"
        )
    summary = read_whole_summary(folder) if (folder / "summary.json").exists() else {}
    return LoadedRun(summary, folder, list(read_metrics(folder).lines))


def result_of(ended: EndedRun) -> RunResult:
    """What a program gets of a run that is over; raises what failed it."""
    if ended.error is not None:
        raise ended.error
    return RunResult(ended.summary, ended.directory, ended.exit_code, list(ended.metrics.lines))
