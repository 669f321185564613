"""Runs of two tenants that train adapters of one model share an engine of their host, with real processes."""

from __future__ import annotations

import json
import os
import signal

import pytest
from pool_runs import TURNS, PoolUser, healthy

from astraflow_testing.runs import TABLE_RUN, User, live_commands

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.turns(
        *TURNS.args,
        "libs/engine_host/src/**/*.py",
        "plugins/engines/torch/src/**/*.py",
        "plugins/trainers/torch/src/**/*.py",
    ),
]

RUN = (
    TABLE_RUN.replace('"astraflow_testing.table:TableEngine"', '"torch"')
    .replace(
        '"astraflow_testing.table:TableTrainer"',
        '"torch", lora_rank = 2, lr = 1e-2, publish_dtype = "float32"',
    )
    .replace('"astraflow_testing.table:TableAlgorithm"', '"grpo"')
)


def shared_engines(user: User) -> list[int]:
    """Their processes."""
    module = "astraflow_engine_host.sharing.main"
    return [pid for pid, words in live_commands(user.marker).items() if module in words]


def test_two_runs_share_an_engine_which_is_killed_once(user: User) -> None:
    user.environment["OMP_NUM_THREADS"] = "1"
    pool = PoolUser(user)
    host = pool.join("only", 2, 64, "--share-engines")
    # Synchronous runs, in which every version is served before the next comes.
    keys = (
        "run.steps=25",
        "run.max_staleness=0",
        "run.probe_every=1",
        "run.episode_deadline_s=60",
        "run.deadline_s=60",
    )
    started = {
        name: pool.start(name, name, *keys, f"policies.solver.trainer.lr={lr}", config=RUN)
        for name, lr in (("ada", 0.01), ("bob", 0.02))
    }

    def tokens(name: str) -> float:
        return float(pool.runs().get(name, {}).get("tokens", 0))

    user.wait_for(lambda: all(tokens(name) > 0 for name in started), 120)
    (first,) = shared_engines(user)
    os.kill(first, signal.SIGKILL)
    for name, process in started.items():
        ended = user.end(process, 150)
        assert ended.exit_code == 0, ended.text + user.last_words()
        directory = next(user.directory.glob(f"runs/{name}-*"))
        healthy(directory)
        lines = map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())
        last = [line["metrics"] for line in lines if "metrics" in line][-1]
        assert last["probe_version"] > 10 and last["probe_largest"] < 1e-5  # its own adapter
        assert "attach first" in (directory / "logs" / "raas-0.log").read_text()
    user.wait_for(lambda: not shared_engines(user), 30)
    host.send_signal(signal.SIGINT)
    ended = user.end(host, 30)
    assert ended.exit_code == 0 and ended.err.count("a shared engine 'torch' serves") == 1
    assert "starting it again" in ended.err
    pool.end()
