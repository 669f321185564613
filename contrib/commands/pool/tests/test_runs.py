"""Whole runs on a pool, with real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from astraflow_testing.runs import User, live_commands

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

POOL = """
[pool]
listen = "127.0.0.1:0"
run_lease_s = 4.0
turn_s = 3.0
drain_s = 5.0

[prices]
million_tokens = 1e6

[tenants.ada]
weight = 3
[tenants.bob]
"""


class PoolUser:
    """A user's pool, without hosts at first."""

    def __init__(self, user: User) -> None:
        self.user = user
        user.write("pool.toml", POOL)
        for words, file in ((["ada"], "ada"), (["bob"], "bob"), ([], "hosts")):
            user.write(f"{file}.token", user.astraflow("pool", "token", "pool.toml", *words).out)
        self.process = user.start("pool", "start", "pool.toml")
        self.address = user.directory / "pool" / "pool.json"
        user.wait_for(self.address.exists)
        self.url = json.loads(self.address.read_text())["url"]

    def join(self, name: str, slots: int, places: int = 16) -> subprocess.Popen[str]:
        return self.user.start(
            *("pool", "join", self.url, "--token-file", "hosts.token", "--name", name),
            *("--slots", str(slots), "--places", str(places)),
        )

    def start(self, name: str, tenant: str, *overrides: str) -> subprocess.Popen[str]:
        keys = (
            f"run.name={name}", "launcher.use=pool", f"launcher.url={self.url}", f"launcher.token_file={tenant}.token"
        )  # fmt: skip
        return self.user.start(*self.user.table_arguments(*keys, *overrides))

    def runs(self) -> dict[str, Any]:
        """By the name in the config."""
        shown = self.user.astraflow("pool", "ls", "pool.toml", "--json")
        assert shown.exit_code == 0, shown.text
        rows = json.loads(shown.out)["runs"]
        return {re.sub(r"\w+/|-\d+-\d+$", "", row["run"]): row for row in rows}

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        ended = self.user.end(self.process, 30)
        assert ended.exit_code == 0, ended.text
        assert self.user.left_running() == []


def raas_of(user: User, name: str) -> list[int]:
    return [
        pid
        for pid, words in live_commands(user.marker).items()
        if "raas" in words and any(f"/{name}-" in word for word in words)
    ]


def healthy(directory: Path) -> None:
    summary = json.loads((directory / "summary.json").read_text())
    assert summary["state"] == "finished", summary
    assert summary["lost"] == summary["duplicated"] == summary["failed"] == 0, summary


def test_a_killed_and_a_failing_run_take_nothing_and_a_host_comes_late_and_leaves(
    user: User,
) -> None:
    pool = PoolUser(user)
    killed = pool.start("killed", "bob", "run.steps=100000")
    failing = pool.start("failing", "bob", "run.steps=100000", "launcher.restarts=1")
    good = pool.start("good", "ada", "run.steps=150")
    user.wait_for(lambda: len(pool.runs()) == 3)
    assert "none is in the pool" in pool.runs()["good"]["waits_for"]
    late = pool.join("late", 3)
    user.wait_for(lambda: bool(raas_of(user, "failing")))
    user.wait_for(lambda: bool(raas_of(user, "killed")))
    os.kill(killed.pid, signal.SIGKILL)
    while failing.poll() is None:  # until its launcher gives up
        for pid in raas_of(user, "failing"):
            os.kill(pid, signal.SIGKILL)
        user.wait_for(lambda: failing.poll() is not None or bool(raas_of(user, "failing")), 60)
    assert user.end(failing, 10).exit_code == 1
    user.wait_for(lambda: not raas_of(user, "killed"), 20)
    assert user.end(good, 120).exit_code == 0, user.last_words()
    healthy(next(user.directory.glob("runs/good-*")))
    runs = pool.runs()
    assert not any(run["here"] or run["raas"] for run in runs.values())
    ledger = user.astraflow("pool", "ls", "pool.toml", "--ledger", "--json")
    trained = 150 * 3 * 32  # steps, tokens of an answer, answers of a batch
    (row,) = (row for row in json.loads(ledger.out) if "/good-" in row["run"])
    assert row["tokens"] > 0.8 * trained and row["cost"] == pytest.approx(row["tokens"])
    drained = user.astraflow("pool", "drain", "pool.toml", "late")
    assert drained.exit_code == 0, drained.text
    left = user.end(late, 30)
    assert left.exit_code == 0 and "was drained" in left.err, left.text
    unknown = user.astraflow("pool", "drain", "pool.toml", "late")
    assert unknown.exit_code == 2 and "has no host 'late'" in unknown.err
    pool.end()


def test_two_runs_take_turns_on_one_slot(user: User) -> None:
    pool = PoolUser(user)
    pool.join("only", 1)
    started = [pool.start(name, name, "run.steps=40") for name in ("ada", "bob")]
    for process in started:
        ended = user.end(process, 150)
        assert ended.exit_code == 0, ended.text + user.last_words()
    for name in ("ada", "bob"):
        healthy(next(user.directory.glob(f"runs/{name}-*")))
    table = user.astraflow("pool", "ls", "pool.toml", "--all").out
    assert re.search(r"^only +1 +0 +16", table, re.MULTILINE), table
    assert table.count("left") == 2


def test_a_pool_that_does_not_answer_or_take_the_run_is_told_before_a_start(user: User) -> None:
    user.write("ada.token", "afp1.tenant.ada.0.x")
    keys = ("launcher.use=pool", "launcher.token_file=ada.token", "launcher.connect_s=0.5")
    ended = user.run_table(*keys, "launcher.url=http://127.0.0.1:9")
    assert ended.exit_code == 2 and "does not answer" in ended.err, ended.text
    pool = PoolUser(user)
    user.write("ada.token", "afp1.tenant.ada.0.x")
    ended = user.run_table(*keys, f"launcher.url={pool.url}")
    assert ended.exit_code == 2 and "does not take this run" in ended.err, ended.text
    pool.end()
