"""The suite of trackers for W&B offline; run by test_tracker_backends.py in an interpreter that has wandb."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from record_log import contents
from wandb.proto import wandb_internal_pb2 as messages

from astraflow_contrib_wandb.config import WandbTrackerConfig
from astraflow_contrib_wandb.tracker import WandbTracker
from astraflow_core.types import ComponentContext
from astraflow_testing.conformance.subject import Subject
from astraflow_testing.conformance.tracker import Read, Recorded, TrackerConformance


class TestWandb(TrackerConformance):
    @pytest.fixture
    def component(self) -> Subject:
        config = WandbTrackerConfig(mode="offline", tags=("a",))
        return Subject(
            {"offline": lambda given: WandbTracker(config, given)}, frozenset({"rollouts"})
        )

    @pytest.fixture
    def read(self) -> Read:
        return recorded


def test_online_without_a_key_fails_and_says_so(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from astraflow_testing.conformance.subject import context

    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    given = context("launcher", tmp_path)
    given.directory.mkdir()
    tracker = WandbTracker(WandbTrackerConfig(mode="online"), given)
    with pytest.raises(Exception, match=r"(?i)api.key"):
        tracker.started(given.run, {})


def recorded(context: ComponentContext) -> Recorded:
    values: dict[str, list[tuple[int, float]]] = {}
    text, rows, ended, ids = "", [], False, set()
    folders = sorted(
        context.directory.glob("wandb/offline-run-*"), key=lambda f: f.stat().st_ctime_ns
    )
    for folder in folders:
        (file,) = folder.glob("*.wandb")
        ended = False
        for content in contents(file.read_bytes()):
            record = messages.Record.FromString(content)
            kind = record.WhichOneof("record_type")
            if kind == "run":
                ids.add(record.run.run_id)
                text += str(record.run.config)
            elif kind == "exit":
                ended = True
            elif kind == "history":
                items = {
                    i.key or "/".join(i.nested_key): json.loads(i.value_json)
                    for i in record.history.item
                }
                for name, value in items.items():
                    group = name.partition("/")[0]
                    if group == "rollouts" and name.endswith("/path"):
                        table = json.loads((folder / "files" / value).read_text())
                        where = [table["columns"].index(c) for c in ("prompt", "completion")]
                        rows += [tuple(row[i] for i in where) for row in table["data"]]
                    elif group != "rollouts" and group + "/step" in items:
                        points = values.setdefault(name, [])
                        points.append((items[f"{group}/step"], float(value)))
    assert len(ids) == 1, "each start of the run has the same id"
    return Recorded(values, text, rows, ended=ended)
