"""What a dataflow holds in memory does not grow with the groups that went through it."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc

from random_policies import HalfReplayed

from astraflow_core.types import Verdict
from astraflow_runtime.dataflow.http.service import DataflowService
from astraflow_runtime.dataflow.http.wakeups import Wakeups
from astraflow_wire.messages import NextBatch, RegisterTrainer, ReleaseBatches

GROUP, LONG = 2, 8000
MOST_BYTES = 50
"""What a group may leave: how its task ended, and its share of what is noted of each update."""
BATCH_BYTES = 4 * LONG * 13
"""Four rows, of 13 bytes a token."""


def bytes_held():
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def update(b, version, free=4, **group):
    """Groups of so many sequences, and an update if they suffice for a batch; returns the bytes of the batch."""
    for task in b.lease(free, serving=version)[0]:
        b.push(task, version=version, **group)
    b.bodies.clear()
    ask = NextBatch(policy="solver", version=version, wait_s=0)
    body = b"".join(b.flow.training.next_batch(ask) or ())
    if not body:
        return b""
    b.announce(version + 1)
    b.acknowledge(b.state.streams["solver"].outstanding.id, version + 1)
    return body


def test_batches_that_are_kept_for_a_trainer_are_not_in_memory_and_come_again_the_same(
    bench, config, tmp_path
):
    b = bench(config(checkpoint__every=8, run__steps=100), journal=tmp_path).begin()
    update(b, 0, length=LONG)
    tracemalloc.start()
    try:
        before = bytes_held()
        batches = [update(b, version, length=LONG) for version in range(1, 8)]
        held = bytes_held() - before - sum(map(len, batches))
    finally:
        tracemalloc.stop()
    assert held < BATCH_BYTES / 2
    b.flow.training.register(RegisterTrainer(policy="solver", pid=5, host="h", updates=(0, 1)))
    for number, batch in enumerate(batches, 1):
        b.announce(8 + number)
        ask = NextBatch(policy="solver", version=8 + number, wait_s=0)
        again = b"".join(b.flow.training.next_batch(ask))
        assert hash(again) == hash(batch)  # a difference would be long
        b.acknowledge(f"solver-{number:06d}", 8 + number)
    b.check()


def test_rows_that_are_drawn_again_are_read_from_the_journal(bench, config, tmp_path):
    """The same batches with a journal, where rows that were trained leave memory, as without one."""
    with_journal, without = (
        bench(config(run__steps=100), data=[HalfReplayed], journal=folder).begin()
        for folder in (tmp_path, None)
    )
    for _ in range(12):
        version = with_journal.state.newest["solver"]
        kept = update(with_journal, version)
        assert kept == update(without, version)
    assert with_journal.state.streams["solver"].rows.replayed


def test_an_image_has_a_group_once_of_which_a_part_is_trained(bench, config, tmp_path):
    """A restart from the image compares it with what the whole journal gives."""
    b = bench(config(checkpoint__every=5, run__group_size=3), journal=tmp_path).begin()
    update(b, 0, free=9)
    stream = b.state.streams["solver"]
    trained = {row.group for batch in stream._unreleased for row in batch.rows}
    assert trained & {row.group for row in stream.buffer.fresh}
    b.write_image()
    b.restart()
    b.check()


class Remembers:
    """A data policy that leaks: it keeps the rewards of every group."""

    def __init__(self):
        self.seen = []

    def accept(self, group):
        self.seen.append(group.rewards)
        return Verdict(True)


def bytes_a_group(b):
    """How much the memory held grows with each group, after the first ones, from one checkpoint to another."""
    updates, sequences = (3, 9), b.state.streams["solver"].batch_sequences
    held = []
    tracemalloc.start()
    try:
        for version in range(updates[1]):
            update(b, version, free=sequences)
            if version % 3 == 2:
                b.flow.training.release(ReleaseBatches(policy="solver", updates=version + 1))
            if version + 1 in updates:
                held.append(bytes_held())
    finally:
        tracemalloc.stop()
    return (held[1] - held[0]) / ((updates[1] - updates[0]) * sequences / GROUP)


def test_next_to_nothing_remains_of_a_group(bench, config, tmp_path):
    many = config(checkpoint__every=3, run__steps=100, policy__batch_sequences=64)
    assert bytes_a_group(bench(many, prompts=10_000, journal=tmp_path / "a").begin()) < MOST_BYTES
    leaks = bench(many, prompts=10_000, data=[Remembers], journal=tmp_path / "b").begin()
    assert bytes_a_group(leaks) > 2 * MOST_BYTES


def test_the_sweep_collects_what_no_allocation_starts_a_collection_of(bench, config, monkeypatch):
    monkeypatch.setattr("astraflow_runtime.dataflow.http.service.FULL_COLLECTION_S", 0.0)
    wakeups = Wakeups()
    service = DataflowService(bench(config(run__lease_s=0.01), signals=wakeups).flow, wakeups, "")
    collected = asyncio.Event()

    def note(phase, info):
        if phase == "stop" and info["generation"] == 2:
            collected.set()

    async def play():
        sweep = asyncio.create_task(service.sweep())
        async with asyncio.timeout(10):
            await collected.wait()
        sweep.cancel()

    gc.callbacks.append(note)
    try:
        asyncio.run(play())
    finally:
        gc.callbacks.remove(note)
