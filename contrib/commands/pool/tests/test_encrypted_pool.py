"""A pool over HTTPS whose tenants differ in priority and quota, with real processes, one of which is killed."""

from __future__ import annotations

import os
import signal

import pytest
from pool_runs import TURNS, PoolUser, healthy, raas_of

from astraflow_testing.runs import User

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), TURNS]

QUOTA = 2000
POOL = f"""
[pool]
listen = "127.0.0.1:0"
host_lease_s = 4.0
drain_s = 5.0

[prices]
million_tokens = 1e6

[tenants.ada]
priority = 1
[tenants.bob]
[tenants.eve]
max_tokens = {QUOTA}
window_s = 86400.0
max_runs = 1
"""


def test_priority_quota_ledger_and_a_killed_host_over_https(user: User) -> None:
    pool = PoolUser(user, POOL, ("ada", "bob", "eve"), encrypted=True)
    assert pool.url.startswith("https://")
    first = pool.join("first", 1)

    eve = pool.start("eve", "eve", "run.steps=100000")
    user.wait_for(lambda: "its quota of 2000 tokens" in waits_for(pool, "eve"), 60)
    ended = user.end(pool.start("more", "eve"), 60)
    assert ended.exit_code == 2 and "as many as it may have (max_runs)" in ended.err, ended.text

    bob = pool.start("bob", "bob", "run.steps=250")
    user.wait_for(lambda: pool.runs().get("bob", {}).get("tokens", 0) > 0, 60)
    ada = pool.start("ada", "ada", "run.steps=120")
    user.wait_for(lambda: pool.runs().get("ada", {}).get("tokens", 0) > 0, 60)
    assert not pool.runs()["bob"]["raas"]
    assert waits_for(pool, "bob").startswith("a slot: 1 of 1 are taken")

    os.kill(first.pid, signal.SIGKILL)
    user.wait_for(lambda: not raas_of(user, "ada"), 20)
    user.wait_for(lambda: not pool.status()["hosts"], 20)
    assert waits_for(pool, "ada") == "a host: none is in the pool"
    second = pool.join("second", 3)
    summaries = {}
    for name, process in (("ada", ada), ("bob", bob)):
        ended = user.end(process, 120)
        assert ended.exit_code == 0, ended.text + user.last_words()
        summaries[name] = healthy(next(user.directory.glob(f"runs/{name}-*")))
    assert eve.poll() is None and not pool.runs()["eve"]["raas"]
    eve.send_signal(signal.SIGINT)
    ended = user.end(eve, 60)
    assert "this run waits in the pool for its quota of 2000 tokens" in ended.err, ended.text

    ledger = pool.ledger()
    for name, summary in summaries.items():  # what the killed host had not reported is missing
        counted = ledger[name]["tokens"]
        assert 0.8 * summary["tokens_trained"] < counted <= summary["tokens_generated"]
    assert QUOTA <= ledger["eve"]["tokens"] < 2 * QUOTA  # what runs at the quota ends
    assert all(row["cost"] == pytest.approx(row["tokens"]) for row in ledger.values())
    assert pool.status()["tokens"] == sum(row["tokens"] for row in ledger.values())
    second.send_signal(signal.SIGINT)
    assert user.end(second, 30).exit_code == 0
    pool.end()


def waits_for(pool: PoolUser, name: str) -> str:
    """As the pool reports it; empty for a run that is not registered yet."""
    return str(pool.runs().get(name, {}).get("waits_for", ""))
