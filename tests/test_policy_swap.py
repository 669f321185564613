"""A data policy is swapped, and swapped back, while a real run continues and its dataflow is killed between."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from astraflow_runtime.dataflow.journal.entries import Swapped
from astraflow_runtime.dataflow.journal_reader import JournalReader
from astraflow_testing.runs import TABLE_RUN, User, live_processes

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc"),
]
CONFIG = (
    TABLE_RUN.replace('use = "digits"\n', 'use = "digits"\ndata = [{ use = "greso" }]\n')
    .replace("[policies.solver]\n", '[policies.solver]\ndata = [{ use = "replay", ratio = 0.5 }]\n')
    .replace("steps = 8", "steps = 100000")
)


def steps(directory: Path) -> int:
    return (directory / "metrics.jsonl").read_text().count('"step"')


def status(user: User, directory: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(user.astraflow("status", "--run", directory, "--json").out)
    return told


def kill_dataflow(user: User, directory: Path) -> None:
    pid = json.loads((directory / "dataflow.json").read_text())["pid"]
    assert pid in live_processes(user.marker)
    os.kill(pid, signal.SIGKILL)
    reached = steps(directory)
    user.wait_for(lambda: steps(directory) > reached + 5, 60)


def test_swap_kill_and_roll_back(user: User) -> None:
    began = time.time()
    process = user.start(
        *user.table_arguments(
            # One group at a time: rows come in fresh enough to be served again within the bound.
            "raas.max_concurrent_episodes=8",
            "policies.solver.engine.token_s=0.02",
            "checkpoint.every=4",
            config=CONFIG,
        )
    )
    directory = user.wait_for_steps(5, 60)

    def swap(*words: str) -> str:
        done = user.astraflow("data-policy", *words, "--run", directory)
        assert done.exit_code == 0, done.text
        return done.out

    swap("swap", "prompts", "greso", '{ use = "greso", floor_hard = 1.0 }',
         "--author", "ada")  # fmt: skip
    swap("swap", "solver", "replay", '{ use = "ordering" }', "--author", "bob")
    assert status(user, directory)["policies"]["solver"]["data_metrics"] == {}
    kill_dataflow(user, directory)
    told = status(user, directory)
    assert [(s["author"], s["table"]["use"]) for s in told["swaps"]] == [
        ("ada", "greso"), ("bob", "ordering"),
    ]  # fmt: skip
    replayed = told["policies"]["solver"]["replayed"]
    assert told["policies"]["solver"]["data_metrics"] == {}

    assert 'replay of solver has use = "replay", ratio = 0.5' in swap(
        "rollback", "solver", "replay", "--author", "eve"
    )
    kill_dataflow(user, directory)
    user.wait_for(lambda: status(user, directory)["policies"]["solver"]["replayed"] > replayed, 60)
    refused = user.astraflow("data-policy", "rollback", "solver", "replay")  # of the newest run
    assert refused.exit_code == 2
    assert "'replay' of 'solver' was not swapped" in refused.err
    refused = user.astraflow(
        "data-policy", "swap", "solver", "replay", "{ use = 'replay', ratio = 2 }"
    )
    assert refused.exit_code == 2
    assert "ratio" in refused.err

    prompt = status(user, directory)["samples"][-1]["prompt_id"]
    explained = user.astraflow("trace", "prompt", prompt, "--json")
    story = json.loads(explained.out)
    assert any(group["shares"] for group in story["groups"]), explained.text
    assert user.astraflow("trace", "group", "train-0", "--run", directory.name).exit_code == 0

    process.send_signal(signal.SIGINT)
    ended = user.end(process, 90)
    assert ended.exit_code == 130, ended.text
    last = json.loads((directory / "status.json").read_text())
    assert last["invariants_ok"]
    swaps = [
        entry
        for _, entry in JournalReader.of_run(directory).entries()
        if isinstance(entry, Swapped)
    ]
    assert [entry.message.author for entry in swaps] == ["ada", "bob", "eve"]
    assert swaps == sorted(swaps, key=lambda entry: entry.versions["solver"])
    assert swaps[0].versions["solver"] >= 0
    assert began <= swaps[0].message.at <= swaps[1].message.at <= swaps[2].message.at <= time.time()
    story = json.loads(user.astraflow("trace", "group", "train-0", "--json").out)
    (group,) = story["groups"]
    assert group["attempts"][0]["raas"] == "raas-0"
    assert group["state"] in ("accepted", "rejected")
