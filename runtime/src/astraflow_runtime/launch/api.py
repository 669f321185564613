"""``astraflow_runtime.run`` and ``resume``: a run from a program or a notebook."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from astraflow_runtime.launch.planning.prepare import Prepared, prepare
from astraflow_runtime.launch.planning.resume import resume as resumed
from astraflow_runtime.launch.run import run_prepared


@dataclass(frozen=True, slots=True)
class RunResult:
    """A run that finished or was interrupted. ``summary`` as in ``summary.json``, ``metrics`` the lines of
    ``metrics.jsonl``, ``exit_code`` 0, or 130 after Ctrl-C."""

    summary: dict[str, Any]
    directory: Path
    exit_code: int
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
    return _result(prepare(config, overrides, workflow, reward), live)


def resume(directory: str | Path, *, live: bool | None = None) -> RunResult:
    """Go on with the run of a directory that ended before it was finished, and return like :func:`run`.
    Trainers continue from their last checkpoints; everything else from the journal."""
    return _result(resumed(directory), live)


def _result(prepared: Prepared, live: bool | None) -> RunResult:
    ended = run_prepared(prepared, live, sys.stdout)
    if ended.error is not None:
        raise ended.error
    return RunResult(ended.summary, ended.directory, ended.exit_code, list(ended.metrics.lines))
