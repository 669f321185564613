"""Whole runs with trackers: one that works, one that fails, one that hangs; and a run that is resumed."""

from __future__ import annotations

import json
import signal
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorboardX.proto.event_pb2 import Event

from astraflow_testing.runs import TABLE_RUN, User

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

OWN = """
import time

class Fails:
    def __init__(self, config, context): pass
    def started(self, run, config): return ""
    def metrics(self, group, step, time_s, values): raise RuntimeError("no network")
    def ended(self, state, summary, curves): pass

class Hangs(Fails):
    def metrics(self, group, step, time_s, values): time.sleep(600)
"""
TENSORBOARD = '\n[trackers.board]\nuse = "tensorboard"\n'
BAD = """
[trackers.fails]
use = "own_trackers:Fails"

[trackers.hangs]
use = "own_trackers:Hangs"
deadline_s = 1
"""


def scalars(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Tag → (step, value), of all event files; the framing is that of TFRecord."""
    found: dict[str, list[tuple[int, float]]] = {}
    for event in _events(run):
        for value in event.summary.value:
            if value.HasField("simple_value"):
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def _events(run: Path) -> Iterator[Event]:
    for file in sorted((run / "tensorboard").glob("events*")):
        content, place = file.read_bytes(), 0
        while place < len(content):
            (size,) = struct.unpack_from("<Q", content, place)
            event = Event()
            event.ParseFromString(content[place + 12 : place + 12 + size])
            yield event
            place += size + 16


def logged(run: Path) -> dict[int, dict[str, Any]]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line for line in lines if "policy" in line}


def test_a_run_ends_well_whatever_its_trackers_do(user: User) -> None:
    user.write("own_trackers.py", OWN)
    del user.environment["ASTRAFLOW_CURVES"]
    ended = user.run_table("run.steps=6", config=TABLE_RUN + TENSORBOARD + BAD, deadline_s=150)
    left = user.left_running()
    assert ended.exit_code == 0, ended.text
    assert not left
    for name, why in (("fails", "RuntimeError: no network"), ("hangs", "longer than 1 s")):
        told = [line for line in ended.out.splitlines() if f"tracker {name!r}" in line]
        assert len(told) == 1 and why in told[0] and f"logs/tracker-{name}.log" in told[0], told
    states = {name: report["state"] for name, report in ended.summary["trackers"].items()}
    assert states == {"board": "complete", "fails": "failed", "hangs": "failed"}
    assert (
        "tracker hangs" in ended.out
        and "RuntimeError" in (ended.run_directory / "logs/tracker-fails.log").read_text()
    )

    found, lines = scalars(ended.run_directory), logged(ended.run_directory)
    assert [step for step, _ in found["solver/reward"]] == list(range(1, 7))
    for step, value in found["solver/reward"]:
        assert value == pytest.approx(lines[step]["reward"])
    for step, value in found["solver/loss"]:
        assert value == pytest.approx(lines[step]["metrics"]["loss"])
    texts = [v.tag for e in _events(ended.run_directory) for v in e.summary.value]
    assert {"config/text_summary", "rollouts/solver/text_summary", "curves"} <= set(texts)


def test_a_resumed_run_continues_its_record(user: User) -> None:
    slow = ("run.steps=8", "policies.solver.trainer.step_s=0.3", "checkpoint.every=1")
    process = user.start(*user.table_arguments(*slow, config=TABLE_RUN + TENSORBOARD))
    run = user.wait_for_steps(2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    user.wait_for(lambda: not user.left_running(0.1))
    ended = user.astraflow("run", "--resume", run, deadline_s=120)
    assert ended.exit_code == 0, ended.text
    assert ended.summary["trackers"]["board"]["steps"] == {"solver": 8}
    steps = [step for step, _ in scalars(run)["solver/reward"]]
    assert sorted(steps) == list(range(1, 9)), "each step once"


def test_a_tracker_whose_packages_are_missing_is_refused_before_the_start(user: User) -> None:
    table = '\n[trackers.lab]\nuse = "mlflow"\n'
    ended = user.run_table(config=TABLE_RUN + table)
    assert ended.exit_code == 2
    assert "trackers.lab" in ended.err and "mlflow-skinny" in ended.err
    assert (
        "astraflow env create NAME --plugin mlflow" in ended.err
        and not (user.directory / "runs").exists()
    )
