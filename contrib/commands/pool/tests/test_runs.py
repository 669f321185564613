"""Whole runs on a pool, with real processes."""

from __future__ import annotations

import os
import re
import signal

import pytest
from pool_runs import TURNS, PoolUser, healthy, raas_of

from astraflow_testing.runs import User

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240), TURNS]


def test_a_killed_and_a_failing_run_take_nothing_and_a_host_comes_late_and_leaves(
    user: User,
) -> None:
    pool = PoolUser(user)
    killed = pool.start("killed", "bob", "run.steps=100000")
    failing = pool.start("failing", "bob", "run.steps=100000", "launcher.restarts=1")
    good = pool.start("good", "ada", "run.steps=150")
    user.wait_for(lambda: len(pool.runs()) == 3)
    user.wait_for(lambda: "none is in the pool" in pool.runs()["good"]["waits_for"])
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
    trained = 150 * 3 * 32  # steps, tokens of an answer, answers of a batch
    row = pool.ledger()["good"]
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


def test_a_pool_that_does_not_answer_or_refuses_the_run_is_reported_before_a_start(
    user: User,
) -> None:
    user.write("ada.token", "afp1.tenant.ada.0.x")
    keys = ("launcher.use=pool", "launcher.token_file=ada.token", "launcher.connect_s=0.5")
    ended = user.run_table(*keys, "launcher.url=http://127.0.0.1:9")
    assert ended.exit_code == 2 and "does not answer" in ended.err, ended.text
    pool = PoolUser(user)
    user.write("ada.token", "afp1.tenant.ada.0.x")
    ended = user.run_table(*keys, f"launcher.url={pool.url}")
    assert ended.exit_code == 2 and "does not take this run" in ended.err, ended.text
    pool.end()
