"""The suite of trackers for MLflow; run by test_tracker_backends.py in an interpreter that has mlflow."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from astraflow_contrib_mlflow.config import MlflowTrackerConfig
from astraflow_contrib_mlflow.tracker import MlflowTracker
from astraflow_core.types import ComponentContext
from astraflow_testing.conformance.subject import Subject
from astraflow_testing.conformance.tracker import Read, Recorded, TrackerConformance


class TestMlflow(TrackerConformance):
    @pytest.fixture(autouse=True)
    def _own_store(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    @pytest.fixture
    def component(self) -> Subject:
        config = MlflowTrackerConfig(experiment="e")
        return Subject(
            {"files": lambda given: MlflowTracker(config, given)}, frozenset({"rollouts"})
        )

    @pytest.fixture
    def read(self) -> Read:
        return recorded


def recorded(context: ComponentContext) -> Recorded:
    directory = context.run.directory
    client = MlflowClient((directory.parent / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("e")
    runs = client.search_runs([experiment.experiment_id])
    (run,) = [r for r in runs if r.info.run_name == directory.name]
    values = {
        name: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, name)]
        for name in run.data.metrics
    }
    artifacts = Path(run.info.artifact_uri.removeprefix("file://"))
    rows = []
    for file in sorted(artifacts.glob("rollouts/solver/*.json")):
        table = json.loads(file.read_text())
        where = [table["columns"].index(column) for column in ("prompt", "completion")]
        rows += [tuple(row[i] for i in where) for row in table["data"]]
    text = os.linesep.join(f"{k} = {v}" for k, v in run.data.params.items())
    return Recorded(values, text, rows, ended=run.info.status != "RUNNING")
