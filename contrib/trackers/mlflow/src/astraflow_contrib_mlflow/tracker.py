"""MLflow, through its client."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from astraflow_contrib_mlflow.config import MlflowTrackerConfig
from astraflow_core.types import ComponentContext, RunInfo
from astraflow_trackers.keys import dotted
from astraflow_trackers.records import ROLLOUT_COLUMNS

ID = "run_id"
URI = "MLFLOW_TRACKING_URI"
_PARAMS_AT_ONCE, _METRICS_AT_ONCE, _LONGEST_PARAM = 100, 1000, 6000  # what a server takes
_UNFIT = re.compile(r"[^\w\-. /]")
_STATES = {"finished": "FINISHED", "stopped": "KILLED", "killed": "KILLED"}


class MlflowTracker:
    """Implements :class:`astraflow_core.protocols.tracker.Tracker`. A resumed run keeps its id."""

    def __init__(self, config: MlflowTrackerConfig, context: ComponentContext) -> None:
        self._config, self._own = config, context.directory
        beside = context.run.directory.parent / "mlruns"
        self._uri = config.uri or os.environ.get(URI) or beside.as_uri()
        if self._uri.startswith("file:") or "://" not in self._uri:
            # Its file store is in maintenance mode, and refused unless the environment allows it explicitly.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")

    def started(self, run: RunInfo, config: Mapping[str, Any]) -> str:
        """Begin the run, or continue it."""
        self._client, file = MlflowClient(self._uri), self._own / ID
        if file.exists():
            self._id = file.read_text(encoding="utf-8")
            self._client.update_run(self._id, status="RUNNING")
        else:
            name = self._config.name or run.directory.name
            created = self._client.create_run(self._experiment(), run_name=name)
            self._id = str(created.info.run_id)
            file.write_text(self._id, encoding="utf-8")
            params = [Param(_key(k), str(v)[:_LONGEST_PARAM]) for k, v in dotted(config).items()]
            for begin in range(0, len(params), _PARAMS_AT_ONCE):
                part = params[begin : begin + _PARAMS_AT_ONCE]
                self._client.log_batch(self._id, params=part)
        return f"{self._uri}, run {self._id}"

    def _experiment(self) -> str:
        """Its id; another process may make it at the same time."""
        name = self._config.experiment
        if (found := self._client.get_experiment_by_name(name)) is not None:
            return str(found.experiment_id)
        try:
            return str(self._client.create_experiment(name))
        except MlflowException:
            if (found := self._client.get_experiment_by_name(name)) is None:
                raise
            return str(found.experiment_id)

    def metrics(self, group: str, step: int, time_s: float, values: Mapping[str, float]) -> None:
        """A metric each."""
        at = int(1000 * time_s)
        metrics = [Metric(_key(name), value, at, step) for name, value in values.items()]
        for begin in range(0, len(metrics), _METRICS_AT_ONCE):
            part = metrics[begin : begin + _METRICS_AT_ONCE]
            self._client.log_batch(self._id, metrics=part)

    def rollouts(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """A table of each update, as an artifact."""
        data = [[row[name] for name in ROLLOUT_COLUMNS] for row in rows]
        table = {"columns": list(ROLLOUT_COLUMNS), "data": data}
        place = f"rollouts/{rows[0]['policy']}/{rows[0]['step']:06d}.json"
        self._client.log_dict(self._id, table, place)

    def ended(self, state: str, summary: Mapping[str, Any], curves: Path | None) -> None:
        """Summary and curves are artifacts."""
        self._client.log_dict(self._id, dict(summary), "summary.json")
        if curves is not None:
            self._client.log_artifact(self._id, str(curves))
        status = _STATES.get(state, "FAILED")
        self._client.set_terminated(self._id, status, int(1000 * time.time()))


def _key(name: str) -> str:
    """The name with the characters that every store takes."""
    return _UNFIT.sub("_", name)[:250]
