"""The windows that the balance is told about, what is asked of the pool, and the reports."""

from __future__ import annotations

import asyncio
import json

import pytest

from astraflow_core.errors import Refused
from astraflow_core.types import Verdict
from astraflow_runtime.dataflow.fleet.notices import has_notices
from astraflow_runtime.dataflow.http.balance_events import balance_events
from astraflow_runtime.dataflow.http.wakeups import Wakeups
from astraflow_wire.messages import RegisterTrainer


class Clocked:
    """A run of one RaaS or more whose trainer and RaaS take known times. Groups of two rows with three
    trained tokens each, batches of four."""

    def __init__(self, b):
        self.b, self.version = b, 0

    def roll_out(self, groups, raas="r0", seconds=0.0):
        """Lease ``groups``, hold them for so long, push them."""
        tasks = []
        while len(tasks) < groups:
            (task,), _ = self.b.lease(2, raas, self.version)
            tasks.append(task)
        self.b.pass_time(seconds, sweep=False)
        for task in tasks:
            self.b.push(task, raas, version=self.version)

    def step(self, waits, trains, policy="solver"):
        """One update: the trainer asks, waits and trains for so long."""
        trainer = self.b.state.trainers[policy]
        trainer.ask(self.b.state.clock(), 60.0)
        self.b.pass_time(waits, sweep=False)
        trainer.answered(self.b.state.clock())
        batch = self.b.next_batch(self.version, policy)
        self.b.pass_time(trains, sweep=False)
        self.version += 1
        self.b.announce(self.version, policy)
        self.b.acknowledge(batch.id, self.version, policy)

    def report(self):
        return self.b.flow.balance()["report"]


@pytest.fixture
def run(bench, config, tmp_path):
    def make(*raas, **changes):
        changes = {"run__max_staleness": 4, "run__steps": 40, "balance__every": 2, **changes}
        b = bench(config(**changes), journal=tmp_path).begin(*raas or ("r0",))
        return Clocked(b)

    return make


def test_the_window_holds_what_happened_after_the_first_step(run):
    r = run()
    r.roll_out(2, seconds=50.0)
    r.step(waits=90.0, trains=1.0)  # the start: dropped, with what was rolled out
    assert r.report() is None
    for _ in range(2):
        r.roll_out(2, seconds=2.0)
        r.step(waits=1.0, trains=1.0)
    report = r.report()
    facts = report["policies"]["solver"]
    assert (facts["steps"], facts["versions"], facts["stale_rows"]) == (2, 2, 0)
    assert (facts["window_s"], facts["waited_s"]) == pytest.approx((8.0, 2.0))
    assert facts["tokens_produced"] == facts["tokens_accepted"] == facts["tokens_consumed"] == 24
    assert facts["waiting_fraction"] == pytest.approx(0.25)
    assert (report["number"], report["pool"]["size"]) == (1, 1)
    assert (report["pool"]["branch"], report["pool"]["target"]) == ("grow", 2)  # ⌈1 / 0.75⌉
    (raas,) = report["raas"]
    assert (raas["name"], raas["tokens"], raas["busy_s"]) == ("r0", 24, pytest.approx(16.0))
    assert raas["speed"] == pytest.approx(1.5)
    assert (raas["state"], raas["draining"]) == ("alive", False)


def test_places_that_stand_empty_make_the_pool_too_large(run):
    """Nothing is over-produced, so that as much is accepted as is consumed; the empty slots show the surplus."""
    r = run("r0", "r1", "r2", "r3")
    r.roll_out(2)
    r.step(waits=0.0, trains=1.0)
    for _ in range(2):
        for raas in ("r1", "r2", "r3"):
            record = r.b.state.fleet.get(raas)
            record.set_idle_slots(4, r.b.state.clock())
        r.roll_out(2, seconds=1.0)  # 4 places for 1 s
        r.step(waits=0.0, trains=9.0)  # 12 places for 10 s
    report = r.report()
    assert report["pool"]["held_back"] == pytest.approx(240 / 248)
    # 4 · (8 / 248) · 1.1 = 0.14
    assert (report["pool"]["branch"], report["pool"]["target"]) == ("shrink", 1)


def test_rejected_tokens_are_produced_and_not_accepted(run, bench, config):
    class Picky:
        def __init__(self):
            self.seen = 0

        def accept(self, group):
            self.seen += 1
            return Verdict(self.seen % 3 > 0, "picky")

    r = Clocked(bench(config(run__max_staleness=4, balance__every=2), data=[Picky]).begin())
    r.roll_out(3)
    r.step(waits=0.0, trains=1.0)
    for _ in range(2):
        r.roll_out(3, seconds=1.0)
        r.step(waits=0.0, trains=1.0)
    facts = r.report()["policies"]["solver"]
    assert (facts["tokens_produced"], facts["tokens_accepted"]) == (36, 24)
    assert facts["tokens_consumed"] == 24


def test_each_trainer_has_its_own_clock(run):
    """Two trainers take turns; each waited for its own time, and the hungrier decides."""
    r = run(policies=("a", "b"))
    b, versions = r.b, {"a": 0, "b": 0}

    def step(policy, waits, trains):
        r.version = versions[policy]
        r.step(waits, trains, policy)
        versions[policy] = r.version

    def roll_out():
        for _ in range(2):
            (task,), _ = b.lease(2, "r0", versions)
            b.push(task, version=min(versions.values()))

    for _ in range(3):
        roll_out()
        step("a", waits=0.0, trains=1.0)
        step("b", waits=4.0, trains=1.0)
    facts = b.flow.balance()["report"]["policies"]
    assert facts["a"]["waiting_fraction"] == 0.0
    assert facts["a"]["window_s"] == facts["b"]["window_s"] == pytest.approx(12.0)
    assert facts["b"]["waiting_fraction"] == pytest.approx(8 / 12)
    assert (facts["a"]["target"], facts["b"]["target"]) == (1, 3)
    assert b.flow.balance()["report"]["pool"]["target"] == 3


def test_a_trainer_that_came_back_starts_its_clock_anew(run):
    r = run()
    for _ in range(2):
        r.roll_out(2)
        r.step(waits=0.0, trains=1.0)
    r.b.pass_time(500.0, sweep=False)
    r.b.register_raas()
    r.b.flow.training.register(RegisterTrainer(policy="solver", pid=3, host="h", updates=(2,)))
    r.version += 1
    r.b.announce(r.version)
    for _ in range(2):
        r.roll_out(2)
        r.step(waits=0.0, trains=1.0)
    assert r.report()["policies"]["solver"]["window_s"] == pytest.approx(2.0)


def test_reports_survive_the_dataflow(run):
    r = run("r0", "r1")
    for _ in range(4):
        r.roll_out(2, seconds=1.0)
        r.step(waits=1.0, trains=1.0)
    r.b.add(2)
    r.b.drain("r1")
    before, status = r.report(), r.b.flow.pool.status()
    r.b.restart()  # compares the windows too
    assert r.b.flow.pool.status() == status
    assert [row["draining"] for row in r.report()["raas"]] == [False, True]
    for row in [*before["raas"], *r.report()["raas"]]:
        del row["ready"]  # which a RaaS must say again
    assert r.report()["policies"] == before["policies"]


def test_a_drained_raas_finishes_what_it_has_and_leaves(run):
    r = run("r0", "r1")
    (task,), notices = r.b.lease(2, "r1")
    assert r.b.drain("r1").size == 1
    assert r.b.drain("r1").drained == 1  # asked again
    record = r.b.state.fleet.get("r1")
    tasks, notices = r.b.lease(8, "r1")
    assert (tasks, notices.stop, has_notices(r.b.state, record)) == ([], False, False)
    assert "its last 1 tasks" in str(r.b.flow.waits())
    assert r.b.push(task, "r1").status == "accepted"
    assert has_notices(r.b.state, record)
    assert r.b.renew([], "r1").stop
    assert r.b.lease(8, "r0")[0]  # the others continue
    r.b.leave("r1")
    r.b.check()
    r.b.register_raas("r1")  # another process may take the name after it left
    assert r.b.lease(8, "r1")[0]


def test_a_draining_raas_that_was_killed_is_still_draining(run):
    r = run("r0", "r1")
    r.b.lease(2, "r1")
    r.b.drain("r1")
    notices = r.b.register_raas("r1")
    assert notices.stop
    r.b.restart()
    assert r.b.renew([], "r1").stop


def test_the_host_of_an_evaluation_ends_it_before_it_leaves(bench, config):
    b = bench(config(), evals={"held": 2}).begin("r0", "r1")
    for raas in ("r0", "r1"):
        b.renew([], raas)
    host = b.state.evaluations.active.host
    other = "r1" if host == "r0" else "r0"
    b.drain(host)
    assert not b.renew([], host).stop
    tasks, _ = b.lease(64, host)
    assert {task.eval_set for task in tasks} == {"held"}
    for task in tasks:
        b.push(task, host)
    assert b.renew([], host).stop
    assert b.lease(64, other)[0]


def test_what_cannot_be_asked_of_the_pool_is_refused(run):
    r = run("r0")
    for act, status, what in [
        (lambda: r.b.drain("r9"), 404, "the registered ones are r0"),
        (lambda: r.b.drain("r0"), 409, "the last RaaS"),
        (lambda: r.b.add(0), 400, "at least one"),
    ]:
        with pytest.raises(Refused, match=what) as refused:
            act()
        assert refused.value.status == status
    assert r.b.add(2, id="x").added == r.b.add(2, id="x").added == 2
    r.b.state.stop("enough")
    with pytest.raises(Refused, match="stopping"):
        r.b.add(1, id="y")


def test_reports_are_a_stream_of_events(bench, config):
    wakeups = Wakeups()
    r = Clocked(bench(config(run__max_staleness=4, balance__every=1), signals=wakeups).begin())

    def work():
        r.roll_out(2)
        r.step(waits=1.0, trains=1.0)

    async def follow():
        pool, progress = r.b.flow.pool, r.b.state.progress
        seen = []
        async with asyncio.timeout(20):
            async for event in balance_events(pool, progress, wakeups, 1):
                number, kind, data = event.decode().rstrip("\n").split("\n")
                seen.append((number, kind, json.loads(data.removeprefix("data: "))["number"]))
                if len(seen) == 1:
                    asyncio.get_running_loop().call_soon(work)
                else:
                    asyncio.get_running_loop().call_soon(r.b.state.fail, "enough")
        return seen

    for _ in range(3):
        work()
    assert asyncio.run(follow()) == [
        ("id: 2", "event: balance", 2),
        ("id: 3", "event: balance", 3),
    ]
