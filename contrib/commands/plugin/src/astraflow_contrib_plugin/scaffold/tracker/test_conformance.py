"""``sample_thing`` keeps what every tracker promises."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from astraflow_core.types import ComponentContext
from astraflow_testing.conformance.manifest import ManifestConformance
from astraflow_testing.conformance.subject import Subject, installed
from astraflow_testing.conformance.tracker import Read, Recorded, TrackerConformance


class TestManifest(ManifestConformance):
    @pytest.fixture
    def manifest(self) -> str:
        return "astraflow_plugin_sample_thing.manifest"


class TestSampleThing(TrackerConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed("tracker", "sample_thing", {})

    @pytest.fixture
    def read(self) -> Read:
        def recorded(context: ComponentContext) -> Recorded:
            with closing(sqlite3.connect(context.run.directory / "metrics.sqlite")) as database:
                values: dict[str, list[tuple[int, float]]] = {}
                for name, step, value in database.execute("SELECT name, step, value FROM metrics"):
                    values.setdefault(name, []).append((step, value))
                ((config, state),) = database.execute("SELECT config, state FROM run")
            return Recorded(values, text=config, ended=state != "active")

        return recorded
