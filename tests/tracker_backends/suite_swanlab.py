"""The suite of trackers for SwanLab offline; run by test_tracker_backends.py in an interpreter that has swanlab."""

from __future__ import annotations

import pytest
from record_log import contents
from swanlab.proto.swanlab.record.v1.record_pb2 import Record

from astraflow_contrib_swanlab.config import SwanlabTrackerConfig
from astraflow_contrib_swanlab.tracker import SwanlabTracker
from astraflow_core.types import ComponentContext
from astraflow_testing.conformance.subject import Subject
from astraflow_testing.conformance.tracker import Read, Recorded, TrackerConformance


class TestSwanlab(TrackerConformance):
    @pytest.fixture
    def component(self) -> Subject:
        config = SwanlabTrackerConfig(mode="offline", tags=("a",))
        return Subject(
            {"offline": lambda given: SwanlabTracker(config, given)}, frozenset({"rollouts"})
        )

    @pytest.fixture
    def read(self) -> Read:
        return recorded


def recorded(context: ComponentContext) -> Recorded:
    values: dict[str, list[tuple[int, float]]] = {}
    rows: list[tuple[str, str]] = []
    text, ended, ids = "", False, set()
    files = sorted(context.directory.rglob("*.swanlab"), key=lambda f: f.stat().st_ctime_ns)
    for file in files:
        ended = False
        for content in contents(file.read_bytes()):
            record = Record.FromString(content)
            kind = record.WhichOneof("record_type")
            if kind == "start":
                ids.add(record.start.id)
            elif kind == "finish":
                ended = True
            elif kind == "scalar":
                scalar = record.scalar
                values.setdefault(scalar.key, []).append((scalar.step, scalar.value.number))
            elif kind == "media" and record.media.key.startswith("rollouts/"):
                for item in record.media.value.items:
                    (written,) = file.parent.rglob(item.filename)
                    prompt, _, completion = written.read_text().partition("\n\ncompletion:\n")
                    assert "reward" in item.caption
                    rows.append((prompt, completion))
        text += "".join(f.read_text() for f in file.parent.rglob("config.*"))
    assert len(ids) == 1, "each start of the run has the same id"
    return Recorded(values, text, rows, ended=ended)
