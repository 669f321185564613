"""Trackio, through its library, in local databases."""

from __future__ import annotations

import os
import secrets
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from astraflow_contrib_trackio.config import TrackioTrackerConfig
from astraflow_core.types import ComponentContext, RunInfo
from astraflow_trackers.keys import dotted
from astraflow_trackers.records import ROLLOUT_COLUMNS

NAME = "run_name"
FOLDER = "TRACKIO_DIR"


class TrackioTracker:
    """Implements :class:`astraflow_core.protocols.tracker.Tracker`. A resumed run keeps its name, by which Trackio knows runs
    of a project. Trackio only warns when it cannot record something; here that is a failure."""

    def __init__(self, config: TrackioTrackerConfig, context: ComponentContext) -> None:
        self._config, self._own = config, context.directory
        given = config.folder or os.environ.get(FOLDER)
        self._folder = Path(given or context.run.directory.parent / "trackio").absolute()
        os.environ[FOLDER] = str(self._folder)  # the library reads it when it is imported
        self._warned: list[str] = []
        self._steps = 0

    def started(self, run: RunInfo, config: Mapping[str, Any]) -> str:
        """Begin the run, or continue it."""
        import trackio
        from trackio.utils import TRACKIO_DIR

        if Path(TRACKIO_DIR) != self._folder:
            raise RuntimeError(
                f"Trackio writes to {TRACKIO_DIR} in this process, not to {self._folder}"
            )
        self._trackio = trackio
        warnings.showwarning = self._heard
        file, own = self._own / NAME, self._config
        resumed = file.exists()
        if not resumed:
            name = own.name or run.directory.name
            taken = name in self._names(own.project)
            file.write_text(f"{name}-{secrets.token_hex(3)}" if taken else name, encoding="utf-8")
        name = file.read_text(encoding="utf-8")
        self._run = trackio.init(
            project=own.project,
            name=name,
            group=own.group,
            config=dict(config),
            resume="allow"
            if resumed
            else "never",  # of a run that logged nothing there is no record
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )
        self._check()
        return f"{self._folder}, run {name} (`trackio show --project {own.project}` with {FOLDER} set to it)"

    def _names(self, project: str) -> set[str]:
        """Of the runs of a project."""
        try:
            return {run.name for run in self._trackio.Api().runs(project)}
        except ValueError:  # there is no such project yet
            return set()

    def metrics(self, group: str, step: int, time_s: float, values: Mapping[str, float]) -> None:
        """One row."""
        self._steps = max(self._steps, step)
        self._run.log(dict(values), step=step)
        self._check()

    def rollouts(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """A table of each update."""
        policy, step = rows[0]["policy"], rows[0]["step"]
        cells = [[_cell(row[name]) for name in ROLLOUT_COLUMNS] for row in rows]
        table = self._trackio.Table(columns=list(ROLLOUT_COLUMNS), data=cells)
        self._run.log({f"rollouts/{policy}": table}, step=step)
        self._check()

    def ended(self, state: str, summary: Mapping[str, Any], curves: Path | None) -> None:
        """The figures of the end are values at the last step, and the curves a picture."""
        figures = {k: v for k, v in dotted(summary).items() if isinstance(v, int | float)}
        last: dict[str, Any] = {f"run/{name}": value for name, value in figures.items()}
        if curves is not None:
            last["curves"] = self._trackio.Image(str(curves))
        if last:
            self._run.log(last, step=self._steps)
        self._trackio.finish()
        self._check()

    def _heard(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        """In place of ``warnings.showwarning``; called by threads of the library too."""
        sys.stderr.write(warnings.formatwarning(message, category, filename, lineno, line))
        if Path(self._trackio.__file__).parent in Path(filename).parents:
            self._warned.append(str(message))

    def _check(self) -> None:
        if self._warned:
            raise RuntimeError(f"Trackio could not record everything: {self._warned[0]}")


def _cell(value: Any) -> Any:
    return str(tuple(value)) if isinstance(value, list | tuple) else value
