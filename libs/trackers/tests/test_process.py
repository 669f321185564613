"""The process of a tracker: whatever it does, its launcher notices by the deadline, and no process is left."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from astraflow_trackers.process import TrackerFailed, TrackerProcess

TRACKERS = """
import json, os, sys, time

class Writes:
    def __init__(self, config, context):
        print("what a library prints")
        self.file = context.directory / "calls.jsonl"
    def note(self, *call):
        with self.file.open("a") as file:
            file.write(json.dumps(call) + "\\n")
    def started(self, run, config):
        self.note("started", run.name, list(run.policies), config)
        return "a place"
    def metrics(self, *step): self.note("metrics", *step)
    def rollouts(self, rows): self.note("rollouts", rows)
    def ended(self, state, summary, curves): self.note("ended", state, summary, str(curves))

class Raises(Writes):
    def metrics(self, *step): raise RuntimeError("no network")

class Hangs(Writes):
    def metrics(self, *step): time.sleep(600)

class Exits(Writes):
    def metrics(self, *step):
        print("the disk is on fire", file=sys.stderr)
        sys.stderr.flush()
        os._exit(7)

class Refuses(Writes):
    def __init__(self, config, context): raise ValueError("no project")
"""
STEP = ("solver", 1, 5.0, {"solver/reward": 0.5})
Start = Callable[..., TrackerProcess]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    (tmp_path / "some_trackers.py").write_text(TRACKERS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    made: list[TrackerProcess] = []

    def begin(name: str, deadline_s: float = 20.0) -> TrackerProcess:
        run: dict[str, Any] = {
            "name": "r",
            "seed": 0,
            "steps": 1,
            "max_staleness": 0,
            "policies": ["solver"],
            "directory": str(tmp_path),
            "engines": [],
        }
        spec: dict[str, Any] = {
            "use": f"some_trackers:{name}",
            "options": {},
            "run": run,
            "seed": 1,
            "directory": str(tmp_path / "own"),
            "deadline_s": deadline_s,
            "disable": [],
            "only": [],
        }
        made.append(TrackerProcess(spec, tmp_path / "log"))
        made[-1].start()
        return made[-1]

    yield begin
    for process in made:
        process.kill()


def calls(folder: Path) -> list[list[Any]]:
    return [json.loads(line) for line in (folder / "own/calls.jsonl").read_text().splitlines()]


def test_calls_arrive_in_order_and_prints_are_in_the_log(start: Start, tmp_path: Path) -> None:
    with closing(start("Writes")) as process:
        assert process.call("started", {"run": {"seed": 0}}) == "a place"
        process.metrics([STEP, ("eval", 0, 6.0, {})])
        process.call("rollouts", [{"reward": 1.0}])
        process.call("ended", "finished", {"steps": 1}, None)
    assert calls(tmp_path) == [
        ["started", "r", ["solver"], {"run": {"seed": 0}}],
        ["metrics", *STEP],
        ["metrics", "eval", 0, 6.0, {}],
        ["rollouts", [{"reward": 1.0}]],
        ["ended", "finished", {"steps": 1}, "None"],
    ]
    assert "what a library prints" in (tmp_path / "log").read_text()


def test_a_message_larger_than_a_pipe_arrives(start: Start, tmp_path: Path) -> None:
    process = start("Writes")
    process.call("rollouts", [{"completion": "x" * 300_000}])
    assert len(calls(tmp_path)[0][1][0]["completion"]) == 300_000


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Raises", r"metrics\(\) failed: RuntimeError: no network"),
        ("Exits", "exited with 7 during metrics.*it said: the disk is on fire"),
        ("Hangs", r"metrics\(\) took longer than 1 s"),
    ],
)
def test_errors_are_reported_by_the_deadline(start: Start, name: str, told: str) -> None:
    process = start(name, deadline_s=1.0)
    began = time.monotonic()
    with pytest.raises(TrackerFailed, match=told):
        process.metrics([STEP])
    assert time.monotonic() - began < 10
    process.kill()
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_a_tracker_that_cannot_be_built_says_why(start: Start) -> None:
    with pytest.raises(TrackerFailed, match="its start failed: ValueError: no project"):
        start("Refuses")


def test_a_launcher_that_goes_without_a_word_leaves_a_whole_record(
    start: Start, tmp_path: Path
) -> None:
    process = start("Writes")
    process.call("started", {})
    process.close()
    assert calls(tmp_path)[-1] == ["ended", "killed", {}, "None"]
