"""A part of a RaaS that is cancelled ends, even if what it waits for happens in that very moment."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from fake_parts import FakeTransport, TransportConfig
from local_engine import LocalEngine
from raas_run import TOKEN, FakeDataflow

from astraflow_core.types import Announcement
from astraflow_runtime.raas.engines.refresh import WeightRefresh
from astraflow_runtime.raas.episodes.episodes import EpisodeCounters
from astraflow_runtime.raas.service import RaasService
from astraflow_wire.http.client import AsyncClient

pytestmark = pytest.mark.timeout(20)


async def ends(task: asyncio.Task, seconds: float = 5.0) -> bool:
    """Whether a cancelled task ends in time."""
    done, _ = await asyncio.wait({task}, timeout=seconds)
    return bool(done)


def test_the_service_ends_though_a_version_was_served_at_that_moment(make_config):
    async def scenario():
        async with FakeDataflow() as flow:
            client = AsyncClient(flow.server.url, TOKEN)
            runner = SimpleNamespace(counters=EpisodeCounters())
            service = RaasService("raas-0", make_config(), client, runner, {}, {})
            life = asyncio.create_task(service.run())
            await flow.until(lambda: len(flow.renewals) >= 2)
            service.served_changed()
            life.cancel()
            ended = await ends(life)
            await client.aclose()
            return ended, flow

    ended, flow = asyncio.run(scenario())
    assert ended
    assert len(flow.left) == 1


def test_the_refresh_ends_though_it_was_woken_at_that_moment(tmp_path):
    async def scenario():
        receiver = FakeTransport(TransportConfig(), SimpleNamespace(directory=tmp_path / "w"))

        def fail(announcement, deadline_s):
            raise OSError("no route to the trainer")

        receiver.fetch = fail
        refresh = WeightRefresh([LocalEngine()], receiver, "keep", deadline_s=5, drain_s=5)
        life = asyncio.create_task(refresh.run())
        refresh.on_announced(Announcement("solver", 0, "fake", ("x",), "d", 10))
        async with asyncio.timeout(5):
            while [wait.for_whom for wait in refresh.waits()] != ["a retry"]:
                await asyncio.sleep(0.005)
        refresh.wake()
        life.cancel()
        return await ends(life)

    assert asyncio.run(scenario())
