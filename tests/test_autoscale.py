"""Whole runs whose pool of RaaS changes: by itself, and by commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from astraflow_testing.runs import EndedCommand, User, live_commands

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc"),
]
LONG = "run.steps=5000"
OFTEN = (
    "balance.every=1",
    "balance.cool_down_s=0",
    "raas.autoscale=true",
    "balance.max_replicas=3",
)
STARVED = ("raas.max_concurrent_episodes=8", "policies.solver.engine.token_s=0.1")
"""One group at a time and 0.3 s for it, so that a batch of four takes a RaaS 1.2 s."""
SATED = ("policies.solver.trainer.step_s=1.0", "balance.shrink_below=0.5", "balance.grow_above=0.9")


def lines(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def stop(user: User, process: subprocess.Popen[str]) -> EndedCommand:
    """End a run as Ctrl-C does: each update was made once, and nothing is lost or counted twice."""
    process.send_signal(signal.SIGINT)
    ended = user.end(process, 120)
    assert ended.exit_code == 130, ended.text
    made = [line["step"] for line in lines(ended.run_directory) if "step" in line]
    assert made == list(range(1, len(made) + 1))
    assert ended.summary["lost"] == 0
    status = json.loads((ended.run_directory / "status.json").read_text())
    assert status["invariants_ok"]
    rows = status["policies"]["solver"]["rows"]
    assert (rows["trained"], rows["lost"]) == (32 * len(made), 0)
    assert user.left_running() == []
    return ended


def pid_of(user: User, *words: str) -> int:
    """The process of the user's run that has these words on its command line."""
    (pid,) = processes(user, *words)
    return pid


def processes(user: User, *words: str) -> list[int]:
    return [pid for pid, line in live_commands(user.marker).items() if {*words} <= {*line}]


def reports(directory: Path) -> list[dict[str, Any]]:
    return [line["balance"] for line in lines(directory) if "balance" in line]


def sizes(directory: Path) -> list[int]:
    return [report["pool"]["size"] for report in reports(directory)]


def asked(user: User, directory: Path) -> dict[str, Any]:
    answer = user.astraflow("balance", "--run", directory, "--json")
    assert answer.exit_code == 0, answer.text
    return dict(json.loads(answer.out))


@pytest.mark.slow
def test_a_run_whose_raas_are_too_slow_grows(user: User) -> None:
    """One of them is killed once there are more; nothing is lost or trained twice."""
    process = user.start(*user.table_arguments(LONG, "checkpoint.every=4", *OFTEN, *STARVED))
    directory = user.wait_for_steps(3, 60)
    user.wait_for(lambda: max(sizes(directory), default=0) > 1, 120)
    victim = pid_of(user, "raas", "raas-0")
    os.kill(victim, signal.SIGKILL)
    user.wait_for(lambda: processes(user, "raas", "raas-0") not in ([], [victim]), 60)
    made = len(reports(directory))
    user.wait_for(lambda: len(reports(directory)) > made + 3 and sizes(directory)[-1] == 3, 120)
    ended = stop(user, process)
    assert ended.summary["restarts"] == 1
    assert sizes(directory)[0] == 1
    assert max(sizes(directory)) == 3
    grown = [report for report in reports(directory) if report["pool"]["branch"] == "grow"]
    assert all(facts["policies"]["solver"]["waiting_fraction"] > 0.1 for facts in grown)
    assert "autoscale: trainers waited" in ended.text


@pytest.mark.slow
def test_a_run_whose_raas_are_too_fast_shrinks(user: User) -> None:
    process = user.start(*user.table_arguments(LONG, "raas.replicas=3", *OFTEN, *SATED))
    directory = user.wait_for_steps(1, 60)
    user.wait_for(lambda: 3 in sizes(directory), 120)
    user.wait_for(lambda: sizes(directory)[-1] == 1, 120)
    user.wait_for(lambda: len(processes(user, "raas")) == 1)
    ended = stop(user, process)
    assert "of the places were idle: " in ended.text
    assert "was drained and left" in ended.text
    assert ended.summary["restarts"] == 0


@pytest.mark.slow
def test_the_pool_is_changed_by_hand_and_survives_kills(user: User) -> None:
    """RaaS are added and drained by command; the dataflow is killed, then the launcher with all."""
    process = user.start(
        *user.table_arguments(
            LONG, "checkpoint.every=2", "policies.solver.trainer.step_s=0.1",
            "balance.every=2",
        )
    )  # fmt: skip
    directory = user.wait_for_steps(2, 60)
    added = user.astraflow("raas", "add", "--run", directory, "--count", "2")
    assert added.exit_code == 0, added.text
    user.wait_for(lambda: asked(user, directory)["pool"]["size"] == 3, 60)
    drained = user.astraflow("raas", "drain", "raas-0", "--run", directory)
    assert (drained.exit_code, drained.out) == (
        0,
        "raas-0 finishes its tasks and leaves; 2 remain\n",
    )
    os.kill(pid_of(user, "dataflow"), signal.SIGKILL)
    user.wait_for(lambda: has_left(user, directory, "raas-0"), 60)
    refused = user.astraflow("raas", "drain", "raas-0", "--run", directory)
    assert refused.exit_code == 2
    assert "there is no RaaS 'raas-0'" in refused.err
    process.kill()
    process.wait()
    assert user.left_running(20) == []

    nobody = user.astraflow("raas", "add", "--run", directory)
    assert nobody.exit_code == 2
    assert "no launcher is running" in nobody.err
    process = user.start("run", "--resume", directory)
    made = len(lines(directory))
    user.wait_for(lambda: len(lines(directory)) > made + 4, 60)
    balance = asked(user, directory)
    assert (balance["pool"]["size"], balance["pool"]["drained"]) == (2, 1)
    assert balance["imbalances"] == []
    told = user.astraflow("balance", "--run", directory)
    assert "RaaS; " in told.out
    assert "solver" in told.out
    process.send_signal(signal.SIGINT)
    assert user.end(process, 60).exit_code == 130


def has_left(user: User, directory: Path, name: str) -> bool:
    raas = {each["name"]: each for each in status(user, directory)["raas"]}
    return bool(raas[name]["draining"] and raas[name]["state"] == "left")


def status(user: User, directory: Path) -> dict[str, Any]:
    return dict(json.loads(user.astraflow("status", "--run", directory, "--json").out))


@pytest.mark.slow
def test_reports_are_followed_until_the_run_ends(user: User) -> None:
    process = user.start(
        *user.table_arguments(
            "run.steps=30", "balance.every=2", "policies.solver.trainer.step_s=0.2"
        )
    )
    directory = user.wait_for_steps(1, 60)
    followed = user.astraflow("balance", "--run", directory, "--follow", "--json", deadline_s=120)
    assert user.end(process, 60).exit_code == 0
    told = [json.loads(line) for line in followed.out.splitlines()]
    assert followed.exit_code == 0
    assert [report["number"] for report in told] == list(range(1, len(told) + 1))
    assert len(told) == len(reports(directory)) > 5
