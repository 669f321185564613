"""A frozen engine that serves older versions of a policy, against an engine in this process and a transport of files."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace

import pytest
from fake_parts import FakeTransport, TransportConfig
from local_engine import LocalEngine

from astraflow_core.types import Announcement
from astraflow_runtime.raas.engines import following
from astraflow_runtime.raas.engines.following import FollowingRefresh

pytestmark = pytest.mark.timeout(60)


@contextlib.asynccontextmanager
async def following_by(behind, tmp_path, **transport):
    engine = LocalEngine("past")
    receiver = FakeTransport(
        TransportConfig(**transport), SimpleNamespace(directory=tmp_path / "w")
    )
    refresh = FollowingRefresh(
        [engine], receiver, "keep", deadline_s=30, drain_s=30, follows="solver", behind=behind
    )
    engine.changed = refresh.wake
    task = asyncio.create_task(refresh.run())
    try:
        yield refresh, engine
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(condition, seconds=30.0):
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


def announce(version):
    return Announcement("solver", version, "fake", ("x",), "d", 10)


def files(tmp_path):
    return sorted(path.name for path in (tmp_path / "w").iterdir())


def test_it_serves_versions_that_are_so_many_behind(tmp_path):
    async def scenario():
        async with following_by(3, tmp_path) as (refresh, engine):
            served = []
            for version in range(12):
                refresh.on_announced(announce(version))
                # The version of each third announcement is set aside, and the one before it served.
                expected = max(0, version // 3 - 1) * 3
                await until(lambda: refresh.serving == expected)  # noqa: B023
                await until(lambda: f"v{version // 3 * 3}" in files(tmp_path))  # noqa: B023
                served.append(version - refresh.serving)
            assert served == [0, 1, 2, 3, 4, 5, 3, 4, 5, 3, 4, 5]
            await until(lambda: files(tmp_path) == ["v6", "v9"])
            loads = [call for call in engine.host.client.calls if call.startswith("load")]
            assert loads == ["load 0", "load 3", "load 6"]

    asyncio.run(scenario())


def test_one_that_joins_later_begins_with_what_is_newest_then(tmp_path):
    async def scenario():
        async with following_by(4, tmp_path) as (refresh, _):
            for version, serves, aside in (
                (37, 37, 37),
                (40, 37, 37),
                (41, 37, 41),
                (44, 37, 41),
                (45, 41, 45),
            ):
                refresh.on_announced(announce(version))
                await until(lambda: refresh.serving == serves and f"v{aside}" in files(tmp_path))  # noqa: B023
            refresh.on_announced(announce(44))
            # A file goes, in a thread, before the refresh that released it is over.
            await until(lambda: files(tmp_path) == ["v41", "v45"] and refresh.waits() == [])

    asyncio.run(scenario())


def test_an_engine_that_is_started_again_gets_the_version_that_it_had(tmp_path):
    async def scenario():
        async with following_by(2, tmp_path) as (refresh, engine):
            for version, serves in ((0, 0), (2, 0), (4, 2)):
                refresh.on_announced(announce(version))
                await until(lambda: refresh.serving == serves and f"v{version}" in files(tmp_path))  # noqa: B023
            engine.die()
            assert refresh.serving is None
            engine.start()
            await until(lambda: refresh.serving == 2)
            assert engine.host.client.calls == ["pause keep", "load 2", "resume"]

    asyncio.run(scenario())


def test_a_version_that_cannot_be_had_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(following, "RETRY_S", 0.01)

    async def scenario():
        async with following_by(2, tmp_path, broken=2) as (refresh, _):
            refresh.on_announced(announce(0))
            await until(lambda: refresh.serving == 0)
            refresh.on_announced(announce(2))
            await asyncio.sleep(0.05)
            assert refresh.serving == 0
            refresh.on_announced(announce(3))
            await until(lambda: "v3" in files(tmp_path))
            refresh.on_announced(announce(5))
            await until(lambda: refresh.serving == 3)

    asyncio.run(scenario())
