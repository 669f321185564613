"""The weight refresh against an engine in this process and a transport of files."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from fake_parts import FakeTransport, TransportConfig
from local_engine import LocalEngine

from astraflow_core.types import Announcement
from astraflow_engine_host.protocol import HostGone
from astraflow_runtime.raas.engines import replica_refresh as module
from astraflow_runtime.raas.engines.refresh import WeightRefresh

pytestmark = pytest.mark.timeout(20)


def announce(version):
    return Announcement("solver", version, "fake", ("x",), "d", 10)


@contextlib.asynccontextmanager
async def refreshing(tmp_path, engine=None, mode="keep", **transport):
    engine = engine or LocalEngine()
    receiver = FakeTransport(
        TransportConfig(**transport), SimpleNamespace(directory=tmp_path / "w")
    )
    refresh = WeightRefresh([engine], receiver, mode, deadline_s=5, drain_s=5)
    engine.changed = refresh.wake
    task = asyncio.create_task(refresh.run())
    try:
        yield refresh, engine
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(condition, seconds=5.0):
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


def files(tmp_path):
    return sorted(path.name for path in (tmp_path / "w").iterdir())


def test_loads_the_newest_version_and_releases_the_old(tmp_path):
    async def scenario():
        async with refreshing(tmp_path) as (refresh, engine):
            assert refresh.serving is None and refresh.waits() == []
            refresh.on_announced(announce(0))
            await until(lambda: refresh.serving == 0)
            refresh.on_announced(announce(1))
            refresh.on_announced(announce(2))
            await until(lambda: refresh.times.swaps == 2)
            await until(lambda: files(tmp_path) == ["v2"])
            assert refresh.serving == 2 and refresh.seen == 2
            assert engine.host.client.calls[-3:] == ["pause keep", "load 2", "resume"]
            refresh.on_announced(announce(1))
            await asyncio.sleep(0.02)
            assert refresh.serving == 2, "readers only move forward"
            assert refresh.waits() == []

    asyncio.run(scenario())


def test_a_fetch_that_fails_leaves_the_old_version_and_is_tried_again(tmp_path):
    async def scenario():
        async with refreshing(tmp_path, broken=1) as (refresh, engine):
            refresh.on_announced(announce(0))
            await until(lambda: refresh.serving == 0)
            refresh.on_announced(announce(1))
            await until(lambda: refresh.times.failures >= 1)
            assert refresh.serving == 0
            assert "block 3 does not match" in refresh.waits()[0].what
            refresh.on_announced(announce(2))
            await until(lambda: refresh.serving == 2)
            assert engine.host.client.calls.count("load 1") == 0

    asyncio.run(scenario())


def test_a_version_that_was_overtaken_is_no_warning(tmp_path, caplog):
    """Its fetch fails when the next one is published, whose announcement is on its way."""
    caplog.set_level("INFO", "astraflow.raas")

    async def scenario():
        async with refreshing(tmp_path, broken=0) as (refresh, _):
            refresh.on_announced(announce(0))
            await until(lambda: refresh.times.failures == 1)
            refresh.on_announced(announce(1))
            await until(lambda: refresh.serving == 1)

    asyncio.run(scenario())
    (said,) = [r for r in caplog.records if "version 0" in r.getMessage()]
    assert said.levelname == "INFO"
    assert said.getMessage().startswith("policy 'solver' has no version yet: version 0: ")


def test_a_version_that_fails_again_is_a_warning(tmp_path, caplog):
    async def scenario():
        async with refreshing(tmp_path, broken=1) as (refresh, _):
            refresh.on_announced(announce(0))
            await until(lambda: refresh.serving == 0)
            refresh.on_announced(announce(1))
            await until(lambda: refresh.times.failures == 2)

    asyncio.run(scenario())
    (said,) = [r for r in caplog.records if r.levelname == "WARNING"]
    assert said.getMessage().startswith("policy 'solver' stays at 0: version 1: ")


def test_a_host_that_is_gone_during_a_swap_is_left_to_its_supervisor(tmp_path, caplog):
    caplog.set_level("INFO", "astraflow.raas")

    async def scenario():
        async with refreshing(tmp_path) as (refresh, engine):
            refresh.on_announced(announce(0))
            await until(lambda: refresh.serving == 0)
            tried = []

            async def gone(*_):
                tried.append(1)
                raise HostGone("it has ended")

            engine.host.client.load_weights = engine.host.client.resume = gone
            refresh.on_announced(announce(1))
            await until(lambda: len(tried) == 2)

    asyncio.run(scenario())
    assert [r.getMessage() for r in caplog.records if "exited during" in r.getMessage()] == []


def test_a_refused_load_resumes_the_engine_with_what_it_had(tmp_path):
    async def scenario():
        engine = LocalEngine(refuse_version=1)
        async with refreshing(tmp_path, engine) as (refresh, _):
            refresh.on_announced(announce(0))
            await until(lambda: refresh.serving == 0)
            refresh.on_announced(announce(1))
            await until(lambda: refresh.times.failures >= 1)
            assert refresh.serving == 0 and engine.host.client.engine.live.is_set()
            assert engine.host.client.calls[-3:] == ["pause keep", "load 1", "resume"]

    asyncio.run(scenario())


def test_a_pin_keeps_its_version_until_it_is_gone(tmp_path):
    async def scenario():
        async with refreshing(tmp_path) as (refresh, _):
            refresh.on_announced(announce(3))
            await until(lambda: refresh.serving == 3)
            refresh.pin(3)
            refresh.on_announced(announce(4))
            await asyncio.sleep(0.05)
            assert refresh.serving == 3 and refresh.seen == 4
            with refresh.hold(3):
                refresh.pin(None)
                await asyncio.sleep(0.05)
                assert refresh.serving == 3, "pinned episodes in flight"
            await until(lambda: refresh.serving == 4)

    asyncio.run(scenario())


def test_a_pin_that_arrives_during_a_pull_prevents_the_swap(tmp_path):
    async def scenario():
        async with refreshing(tmp_path, fetch_s=0.1) as (refresh, engine):
            refresh.on_announced(announce(0))
            await until(lambda: refresh.serving == 0)
            refresh.on_announced(announce(1))
            await asyncio.sleep(0.03)
            refresh.pin(0)
            await asyncio.sleep(0.15)
            assert refresh.serving == 0 and "load 1" not in engine.host.client.calls
            refresh.pin(None)
            await until(lambda: refresh.serving == 1)
            assert refresh.times.bytes_received == 20, "what was fetched is used"

    asyncio.run(scenario())


def test_a_pin_moves_forward_to_its_own_version_not_to_the_newest(tmp_path):
    async def scenario():
        async with refreshing(tmp_path) as (refresh, _):
            refresh.pin(1)
            refresh.on_announced(announce(1))
            refresh.on_announced(announce(2))
            await until(lambda: refresh.serving is not None)
            await asyncio.sleep(0.05)
            assert refresh.serving == 1
            refresh.pin(None)
            await until(lambda: refresh.serving == 2)

    asyncio.run(scenario())


def test_a_pin_may_lead_back_to_an_older_version(tmp_path):
    async def scenario():
        async with refreshing(tmp_path) as (refresh, _):
            refresh.on_announced(announce(6))
            await until(lambda: refresh.serving == 6)
            refresh.pin(3)
            await until(lambda: refresh.waits())
            assert "pinned version 3" in refresh.waits()[0].what
            refresh.on_announced(announce(3))
            await until(lambda: refresh.serving == 3)
            assert refresh.seen == 6
            refresh.on_announced(announce(7))
            await asyncio.sleep(0.05)
            assert refresh.serving == 3
            refresh.pin(None)
            await until(lambda: refresh.serving == 7)

    asyncio.run(scenario())


def test_a_restarted_host_gets_its_version_back_without_a_fetch(tmp_path):
    async def scenario():
        async with refreshing(tmp_path) as (refresh, engine):
            refresh.on_announced(announce(5))
            await until(lambda: refresh.serving == 5)
            received = refresh.times.bytes_received
            engine.die()
            assert refresh.serving is None
            await until(lambda: refresh.waits())
            engine.start()
            await until(lambda: refresh.serving == 5)
            assert refresh.times.bytes_received == received

    asyncio.run(scenario())


def test_a_host_that_died_unnoticed_blocks_no_request(tmp_path, monkeypatch):
    async def scenario():
        async with refreshing(tmp_path) as (refresh, engine):
            calls = 0

            async def gone(mode, drain_s):
                nonlocal calls
                calls += 1
                raise HostGone("the host is lost")

            monkeypatch.setattr(engine.host.client, "pause", gone)
            refresh.on_announced(announce(0))
            await until(lambda: calls)
            await asyncio.sleep(0.05)
            assert calls <= 2
            engine.die()
            engine.start()
            await until(lambda: refresh.serving == 0)

    asyncio.run(scenario())


def test_a_load_over_its_deadline_kills_the_host(tmp_path, monkeypatch):
    from astraflow_core.errors import DeadlineExceeded

    async def scenario():
        engine = LocalEngine()
        async with refreshing(tmp_path, engine) as (refresh, _):

            async def hang(source, deadline_s):
                raise DeadlineExceeded("the host", "load", deadline_s)

            monkeypatch.setattr(engine.host.client, "load_weights", hang)
            refresh.on_announced(announce(0))
            await until(lambda: engine.host is None)
            engine.start()
            await until(lambda: refresh.serving == 0)

    monkeypatch.setattr(module, "LONGEST_PAUSE_S", 0.05)
    asyncio.run(scenario())


@contextlib.asynccontextmanager
async def refreshing_two(tmp_path, first=None, **transport):
    engines = [first or LocalEngine(), LocalEngine(number=1)]
    context = SimpleNamespace(directory=tmp_path / "w")
    receiver = FakeTransport(TransportConfig(**transport), context)
    refresh = WeightRefresh(engines, receiver, "keep", deadline_s=5, drain_s=5)
    for engine in engines:
        engine.changed = refresh.wake
    task = asyncio.create_task(refresh.run())
    try:
        yield refresh, engines
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def served(refresh):
    return [replica.serving for replica in refresh.replicas]


def test_a_version_is_fetched_once_for_all_replicas(tmp_path):
    async def scenario():
        async with refreshing_two(tmp_path, fetch_s=0.02) as (refresh, _):
            for version in range(4):
                refresh.on_announced(announce(version))
                await until(lambda v=version: served(refresh) == [v, v])
            await until(lambda: files(tmp_path) == ["v3"])
            assert refresh.times.bytes_received == 40 and refresh.times.swaps == 8

    asyncio.run(scenario())


def test_a_replica_that_refuses_a_version_blocks_no_other_and_is_reported_separately(tmp_path):
    async def scenario():
        engine = LocalEngine(refuse_version=1)
        async with refreshing_two(tmp_path, engine) as (refresh, _):
            refresh.on_announced(announce(0))
            await until(lambda: served(refresh) == [0, 0])
            refresh.on_announced(announce(1))
            await until(lambda: refresh.times.failures and served(refresh) == [0, 1])
            assert refresh.serving == 0
            assert "another shape" in refresh.replicas[0].trouble
            assert not refresh.replicas[1].trouble
            assert sorted(files(tmp_path)) == ["v0", "v1"], "each keeps what it has"
            refresh.on_announced(announce(2))
            await until(lambda: served(refresh) == [2, 2])

    asyncio.run(scenario())


def test_a_replica_that_dies_rejoins_with_what_the_others_have(tmp_path):
    async def scenario():
        async with refreshing_two(tmp_path) as (refresh, (first, _)):
            refresh.on_announced(announce(3))
            await until(lambda: served(refresh) == [3, 3])
            first.die()
            assert served(refresh) == [None, 3] and refresh.serving == 3
            refresh.on_announced(announce(4))
            await until(lambda: served(refresh) == [None, 4])
            assert refresh.serving == 4
            received = refresh.times.bytes_received
            first.start()
            await until(lambda: served(refresh) == [4, 4])
            assert refresh.times.bytes_received == received

    asyncio.run(scenario())


def test_a_replica_comes_back_at_the_version_that_is_held_for_an_evaluation(tmp_path):
    async def scenario():
        async with refreshing_two(tmp_path) as (refresh, (first, _)):
            refresh.pin(3)
            refresh.on_announced(announce(3))
            await until(lambda: served(refresh) == [3, 3])
            with refresh.hold(3):
                refresh.pin(None)
                refresh.on_announced(announce(4))
                first.die()
                first.start()
                await until(lambda: served(refresh) == [3, 3])
                await asyncio.sleep(0.02)
                assert served(refresh) == [3, 3]
            await until(lambda: served(refresh) == [4, 4])

    asyncio.run(scenario())


def test_discarded_versions_make_way_for_lower_numbers_and_other_weights(tmp_path):
    """The journal of the run has lost versions: others will have their numbers."""

    async def scenario():
        async with refreshing(tmp_path) as (refresh, engine):
            refresh.on_announced(announce(7))
            await until(lambda: refresh.serving == 7 and refresh.waits() == [])
            assert refresh.digest == "d"
            refresh.discard()
            assert (refresh.serving, refresh.seen, refresh.digest) == (None, -1, "")
            assert engine.host is None, "the engine may keep results by the number of a version"
            engine.start()
            refresh.on_announced(announce(5))
            await until(lambda: refresh.serving == 5)
            refresh.on_announced(replace(announce(7), digest="other"))
            await until(lambda: refresh.serving == 7)
            assert refresh.digest == "other"
            assert engine.host.client.calls.count("load 7") == 1

    asyncio.run(scenario())


def test_a_version_that_is_discarded_while_it_is_fetched_is_not_loaded(tmp_path):
    async def scenario():
        async with refreshing(tmp_path) as (refresh, engine):
            fetched, go_on = threading.Event(), threading.Event()
            receiver = refresh._cache._receiver
            fetch = receiver.fetch

            def slow(*arguments):
                fetched.set()
                go_on.wait(5)
                return fetch(*arguments)

            receiver.fetch = slow
            refresh.on_announced(announce(7))
            await until(fetched.is_set)
            refresh.discard()
            go_on.set()
            await until(lambda: refresh.times.failures == 1)
            assert "load 7" not in engine.host.client.calls
            refresh.on_announced(announce(6))
            await until(lambda: refresh.serving == 6)
            await until(lambda: files(tmp_path) == ["v6"])

    asyncio.run(scenario())


def test_the_version_served_may_be_finished_before_another_is_loaded(tmp_path):
    async def scenario():
        async with refreshing(tmp_path) as (refresh, engine):
            served, go = [], asyncio.Event()

            async def finish():
                served.append(refresh.serving)
                await go.wait()

            (replica,) = refresh.replicas
            refresh.on_announced(announce(0))
            go.set()
            await until(lambda: refresh.serving == 0)
            go.clear()
            replica.before_swap = finish
            refresh.on_announced(announce(1))
            await until(lambda: served)
            (wait,) = refresh.waits()
            assert wait.what == "the end of work with version 0"
            refresh.on_announced(announce(2))
            go.set()
            await until(lambda: refresh.serving == 2)
            assert served == [0] and "load 1" not in engine.host.client.calls

    asyncio.run(scenario())
