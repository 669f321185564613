"""Whatever the network or a receiver does, an engine is given whole versions, exactly as exported."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from astraflow_testing.runs import TABLE_RUN, EndedCommand, User, live_commands

pytestmark = [pytest.mark.timeout(120), pytest.mark.slow]

PARTS = Path(__file__).with_name("faulty_parts.py")
RUN = (
    TABLE_RUN.replace("astraflow_testing.table:TableEngine", "faulty_parts:WitnessEngine")
    .replace("astraflow_testing.table:TableTrainer", "faulty_parts:BallastTrainer")
    .replace('use = "http"', 'use = "faulty_parts:FaultyTransport"')
)


def arguments(user: User, *overrides: str, **transport: float) -> list[str]:
    """Of a run with the faulty parts; ``transport``: keys of the transport."""
    user.write(PARTS.name, PARTS.read_text())
    keys = [f"policies.solver.transport.{key}={value}" for key, value in transport.items()]
    return user.table_arguments(*overrides, *keys, config=RUN)


def notes(directory: Path, name: str) -> list[dict[str, Any]]:
    """What the parts noted."""
    file = directory / f"{name}.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def faults(directory: Path) -> Counter[str]:
    return Counter(fault["kind"] for fault in notes(directory, "faults"))


def check(ended: EndedCommand, steps: int) -> list[int]:
    """The run is sound and every version that an engine was given is what was exported under that
    number; returns the numbers, in the order in which they were given."""
    assert ended.exit_code == 0, ended.text
    assert ended.summary["steps"] == steps
    assert ended.summary["lost"] == ended.summary["duplicated"] == 0
    status = json.loads((ended.run_directory / "status.json").read_text())
    assert status["invariants_ok"]
    exported = {e["version"]: e["digest"] for e in notes(ended.run_directory, "exported")}
    assert len(set(exported.values())) == len(exported) == steps + 1
    given = notes(ended.run_directory, "given")
    wrong = [entry for entry in given if entry["digest"] != exported[entry["version"]]]
    assert not wrong
    left = [*ended.run_directory.rglob("*.part"), *ended.run_directory.rglob("received-*")]
    assert not left
    return [entry["version"] for entry in given]


def test_flipped_bytes_and_cut_connections_reach_no_engine(user: User) -> None:
    overrides = ["run.steps=60", "raas.replicas=2", "policies.solver.trainer.step_s=0.05"]
    ended = user.astraflow(*arguments(user, *overrides, flips=0.02, cuts=0.01), deadline_s=90)
    given = check(ended, 60)
    happened = faults(ended.run_directory)
    assert happened["flip"] >= 20 and happened["cut"] >= 10, happened
    assert len(set(given)) >= 10
    assert ended.summary["restarts"] == 0


def test_a_receiver_that_stalls_for_20_publishes_gets_what_it_asked_for_or_nothing(
    user: User,
) -> None:
    overrides = ["run.steps=60", "raas.replicas=2"]
    ended = user.astraflow(
        *arguments(user, *overrides, stall_at=4, stall_publishes=20), deadline_s=90
    )
    check(ended, 60)
    stalled, over = [f for f in notes(ended.run_directory, "faults") if "stall" in f["kind"]]
    assert over["newest"] >= stalled["version"] + 20
    # Either RaaS has moved on to newer versions afterwards.
    newest = {
        entry["at"]: entry["version"] for entry in notes(ended.run_directory, "given")
    }.values()
    assert len(newest) == 2 and min(newest) > stalled["version"]


def test_a_receiver_that_is_killed_in_the_middle_of_a_fetch_leaves_nothing(user: User) -> None:
    process = user.start(*arguments(user, "run.steps=40", stall_at=5, stall_publishes=10**9))
    user.wait_for(lambda: any(map(faults, user.directory.glob("runs/*"))))
    directory = next(user.directory.glob("runs/*"))
    (victim,) = [pid for pid, line in live_commands(user.marker).items() if "raas" in line]
    partial = list(directory.rglob("*.part"))
    os.kill(victim, signal.SIGKILL)
    ended = user.end(process, 90)
    given = check(ended, 40)
    assert partial and ended.summary["restarts"] == 1
    (stalled,) = [f for f in notes(directory, "faults") if f["kind"] == "stall"]
    # Its successor got that version, or a newer one, from the start.
    assert given[given.index(max(v for v in given if v < stalled["version"])) + 1] >= 5


def test_a_load_that_fails_leaves_the_version_before_serving(user: User) -> None:
    ended = user.astraflow(
        *arguments(
            user, "run.steps=24", "run.max_staleness=4", "policies.solver.engine.refuse_every=3",
            "policies.solver.trainer.step_s=0.1", "policies.solver.engine.token_s=0.05",
        ),
        deadline_s=90,
    )  # fmt: skip
    check(ended, 24)
    serving, sampled_after_refusal = -1, 0
    refused = False
    for entry in notes(ended.run_directory, "engine"):
        refused = "refused" in entry or (refused and "loaded" not in entry)
        serving = entry.get("loaded", serving)
        if "sampled" in entry:
            assert entry["sampled"] == serving
            sampled_after_refusal += refused
    assert sampled_after_refusal
    log = (ended.run_directory / "logs" / "raas-0.log").read_text()
    assert "policy 'solver' stays at" in log and "is refused" in log
    assert ended.summary["max_staleness_seen"] <= ended.summary["max_staleness_allowed"] == 4
    assert ended.summary["restarts"] == 0
