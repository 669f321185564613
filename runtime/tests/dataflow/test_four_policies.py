"""Four policies that train at different speeds in one run, and one of them dies: the others go on, and it is named."""

from __future__ import annotations

from astraflow_core.types import Batch

EVERY = {"fast": 1, "even": 2, "slow": 4, "dead": 1}
"""Rounds that an update of each policy takes."""
DIES_AFTER, ROUNDS, ROUND_S, DEADLINE_S = 4, 40, 5.0, 60.0
SILENT = int(DEADLINE_S / ROUND_S)
"""Rounds after which a trainer that is not heard of holds no one up."""


def test_four_policies_at_different_speeds_and_one_of_them_dies(bench, config):
    b = bench(
        config(list(EVERY), run__deadline_s=DEADLINE_S, run__steps=100, run__max_staleness=3),
        prompts=10_000,
    ).begin()
    version = dict.fromkeys(EVERY, 0)
    when_left_out: dict[str, int] = {}
    for number in range(ROUNDS):
        b.pass_time(ROUND_S)
        for index, task in enumerate(b.lease(64, serving=version)[0]):
            policy = list(EVERY)[index % len(EVERY)]
            b.push(task, policies=(policy, policy), version=version[policy])
        for policy, every in EVERY.items():
            if (policy == "dead" and number >= DIES_AFTER) or number % every:
                continue
            batch = b.next_batch(version[policy], policy)
            if isinstance(batch, Batch):
                version[policy] += 1
                b.announce(version[policy], policy)
                b.acknowledge(batch.id, version[policy], policy)
        if number == DIES_AFTER + SILENT:
            when_left_out = dict(version)
    rounds = ROUNDS - DIES_AFTER - SILENT
    after = {policy: version[policy] - when_left_out[policy] for policy in EVERY}
    assert after["slow"] >= rounds // EVERY["slow"] - 1, "the slowest trains as fast as it can"
    assert after["fast"] >= after["even"] >= after["slow"]
    assert after["dead"] == 0
    named = [wait for wait in b.flow.waits() if wait.for_whom == "trainer dead"]
    assert [(wait.who, wait.what) for wait in named] == [("dataflow", "its next call")]
    rows = b.flow.balance()["rows"]["dead"]
    limit = b.state.streams["dead"].limit
    assert rows["buffered"] <= limit < rows["accepted"], "its buffer does not grow for ever"
    b.check()
