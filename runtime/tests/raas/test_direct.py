"""Versions that come to an engine directly, and as a file when they do not."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace

import pytest
from fake_parts import FakeTransport, TransportConfig
from local_engine import LocalEngine

from astraflow_core.errors import WeightsError
from astraflow_core.types import Announcement, Delivery, Rendezvous
from astraflow_runtime.raas.engines.refresh import WeightRefresh

pytestmark = pytest.mark.timeout(20)


class DirectTransport(FakeTransport):
    """Delivers all versions but those in ``closed``; ``tickets`` are those that were not given back."""

    def __init__(self, folder, closed=(), rendezvous=True):
        super().__init__(TransportConfig(), SimpleNamespace(directory=folder))
        self.closed, self.rendezvous, self.tickets = closed, rendezvous, []

    def meet(self, announcement, member, workers, deadline_s):
        if announcement.version in self.closed:
            raise WeightsError("its window has ended")
        self.tickets.append(announcement.version)
        place = Rendezvous("trainer", 1, 1, 1 + workers) if self.rendezvous else None
        return Delivery(announcement.version, (), place)

    def done(self, announcement, delivery):
        self.tickets.remove(delivery.version)


def direct_engine(torn=(), direct=True):
    engine = LocalEngine()
    client = engine.host.client
    engine.host.direct, engine.host.workers = direct, 1

    async def join(rendezvous, deadline_s):
        client.calls.append(f"join {rendezvous.world_size}")

    async def receive(delivery, deadline_s):
        client.calls.append(f"receive {delivery.version}")
        if delivery.version in torn:
            raise WeightsError("bucket 2 is torn")
        client.engine.version = delivery.version

    client.join, client.receive = join, receive
    return engine


def calls_of(tmp_path, engine, transport, versions=(1,), mode="keep"):
    """What a refresh asks of ``engine`` for versions that are announced one after the other."""

    async def scenario():
        refresh = WeightRefresh([engine], transport, mode, deadline_s=5, drain_s=5)
        engine.changed = refresh.wake
        task = asyncio.create_task(refresh.run())
        for version in versions:
            refresh.on_announced(Announcement("solver", version, "fake", ("x",), "d", 10))
            # A swap counts before its delivery is returned; a call that is cancelled in between resumes the engine once
            # more.
            while refresh.times.swaps < version or refresh.waits():
                await asyncio.sleep(0.005)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert not transport.tickets and refresh.serving == versions[-1]
        assert engine.host.client.engine.live.is_set()
        return engine.host.client.calls

    return asyncio.run(scenario())


def test_a_version_comes_directly_and_leaves_no_file(tmp_path):
    transport = DirectTransport(tmp_path / "w")
    calls = calls_of(tmp_path, direct_engine(), transport, (1, 2))
    assert calls == [
        "join 2", "pause keep", "receive 1", "resume", "join 2", "pause keep", "receive 2", "resume",
    ]  # fmt: skip
    assert not (tmp_path / "w").exists()


def test_a_drain_comes_before_the_meeting(tmp_path):
    calls = calls_of(tmp_path, direct_engine(), DirectTransport(tmp_path / "w"), mode="wait")
    assert calls == ["pause wait", "join 2", "pause wait", "receive 1", "resume"]


def test_memory_to_map_needs_no_meeting(tmp_path):
    transport = DirectTransport(tmp_path / "w", rendezvous=False)
    assert calls_of(tmp_path, direct_engine(), transport) == ["pause keep", "receive 1", "resume"]


@pytest.mark.parametrize("mode", ["keep", "wait"])
def test_what_arrives_torn_is_fetched_once_the_engine_continues(tmp_path, mode):
    calls = calls_of(tmp_path, direct_engine(torn=(1,)), DirectTransport(tmp_path / "w"), mode=mode)
    at = calls.index("receive 1")
    assert calls[at + 1] == "resume"
    assert calls[-3:] == [f"pause {mode}", "load 1", "resume"]


def test_what_is_not_delivered_is_fetched_and_asked_for_once(tmp_path):
    transport = DirectTransport(tmp_path / "w", closed=(1,))
    calls = calls_of(tmp_path, direct_engine(), transport, (1, 2))
    assert calls[:3] == ["pause keep", "load 1", "resume"] and "receive 2" in calls


def test_an_engine_that_cannot_is_never_asked(tmp_path):
    calls = calls_of(tmp_path, direct_engine(direct=False), DirectTransport(tmp_path / "w"))
    assert calls == ["pause keep", "load 1", "resume"]
