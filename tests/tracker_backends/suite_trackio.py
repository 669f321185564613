"""The suite of trackers for Trackio; run by test_tracker_backends.py in an interpreter that has trackio."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from astraflow_contrib_trackio.config import TrackioTrackerConfig
from astraflow_contrib_trackio.tracker import NAME, TrackioTracker
from astraflow_core.types import ComponentContext
from astraflow_testing.conformance.subject import Subject
from astraflow_testing.conformance.tracker import Read, Recorded, TrackerConformance

FOLDER = Path(os.environ["HOME"]) / "databases"
"""One for all tests: the library reads it when it is imported. Runs of several tests have the same name."""


class TestTrackio(TrackerConformance):
    @pytest.fixture
    def component(self) -> Subject:
        config = TrackioTrackerConfig(project="e", folder=FOLDER)
        return Subject(
            {"files": lambda given: TrackioTracker(config, given)}, frozenset({"rollouts"})
        )

    @pytest.fixture
    def read(self) -> Read:
        return recorded


def recorded(context: ComponentContext) -> Recorded:
    name = (context.directory / NAME).read_text()
    (file,) = FOLDER.glob("e*.db")
    with closing(sqlite3.connect(file)) as database:
        found = database.execute(
            "SELECT step, metrics FROM metrics WHERE run_name = ? ORDER BY id", (name,)
        ).fetchall()
        text = str(
            database.execute("SELECT config FROM configs WHERE run_name = ?", (name,)).fetchall()
        )
    values: dict[str, list[tuple[int, float]]] = {}
    rows = []
    for step, line in found:
        for key, value in json.loads(line).items():
            if isinstance(value, float | int):
                values.setdefault(key, []).append((step, value))
            elif key.startswith("rollouts/"):
                rows += [(row["prompt"], row["completion"]) for row in value["_value"]]
    return Recorded(values, text, rows)


def test_what_the_library_only_warns_of_is_a_failure(tmp_path: Path) -> None:
    from astraflow_testing.conformance.subject import context

    given = context("launcher", tmp_path)
    given.directory.mkdir()
    tracker = TrackioTracker(TrackioTrackerConfig(project="e", folder=FOLDER), given)
    tracker.started(given.run, {})
    with pytest.raises(RuntimeError, match="could not record everything"):
        tracker.metrics("solver", 1, 1.0, {"solver/odd": object()})  # type: ignore[dict-item]
