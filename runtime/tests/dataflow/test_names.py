"""Two RaaS with one name: a live process keeps it, and a dead one does not block its successor."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import httpx
import pytest
from msgspec.structs import replace

from astraflow_runtime.dataflow.fleet.names import name_holder
from astraflow_runtime.dataflow.fleet.raas import RaasRecord
from astraflow_runtime.dataflow.http.service import DataflowService
from astraflow_runtime.dataflow.http.wakeups import Wakeups
from astraflow_wire import messages
from astraflow_wire.http.server import Server

pytestmark = pytest.mark.timeout(20)

FIRST = messages.RegisterRaas(
    raas="r0", pid=71, host="node-a", policies=["solver"], capacity=8, origin="ada"
)
SECOND = replace(FIRST, pid=72, host="node-b", origin="bob")
SUSPECT_S = 20.0
"""After two thirds of the lease."""


@dataclass
class Place:
    """The dataflow's own ``bench``, and a client of its service."""

    bench: object
    http: httpx.AsyncClient

    @property
    def holder(self) -> RaasRecord:
        return self.bench.state.fleet.get("r0")

    async def register(self, message: messages.RegisterRaas) -> httpx.Response:
        return await self.http.post("/v1/raas/register", content=messages.encode(message))

    async def taken(self, message: messages.RegisterRaas) -> bool:
        """Whether it is registered at once, as the holder of the name."""
        before = getattr(self.holder, "incarnation", 0)
        answer = await self.register(message)
        return answer.status_code == 200 and self.holder.incarnation == before + 1

    @asynccontextmanager
    async def knocking(self, message: messages.RegisterRaas):
        """A registration that waits for the name."""
        asked = asyncio.create_task(self.register(message))
        while message.pid not in self.waiting:
            await asyncio.sleep(0.001)
        assert not asked.done()
        yield asked
        asked.cancel()

    waiting: set[int] = field(default_factory=set)
    looks = 0


@pytest.fixture
def placed(bench, config, tmp_path, monkeypatch):
    monkeypatch.setattr("astraflow_runtime.dataflow.http.service.NAME_S", 0.001)

    @asynccontextmanager
    async def start(restart: bool | None = None, sockets: bool = False):
        """``restart``: with ``FIRST`` registered before it was restarted, after the run's end if true."""
        wakeups = Wakeups()
        b = bench(config(), signals=wakeups, journal=tmp_path / "journal")
        b.register_trainers()
        b.announce(0)
        if restart is not None:
            b.flow.leasing.register(FIRST)
            b.restart(resumed=restart)
        app = DataflowService(b.flow, wakeups, "").app
        transport, url = httpx.ASGITransport(app=app), "http://flow"
        async with AsyncExitStack() as stack:
            if sockets:
                server = await stack.enter_async_context(Server(app, "127.0.0.1", 0))
                transport, url = httpx.AsyncHTTPTransport(), server.url
            http = httpx.AsyncClient(transport=transport, base_url=url, timeout=20)
            place = Place(b, await stack.enter_async_context(http))

            def looked(state, message, came):
                place.looks += 1
                found = name_holder(state, message, came)
                if found is not None:
                    place.waiting.add(message.pid)
                return found

            monkeypatch.setattr("astraflow_runtime.dataflow.http.service.name_holder", looked)
            yield place

    return start


def test_a_second_one_is_refused_as_soon_as_the_first_has_called(placed):
    async def play():
        async with placed() as place:
            b = place.bench
            assert await place.taken(FIRST)
            (task,), _ = b.lease(2)
            b.pass_time(3.5)
            async with place.knocking(SECOND) as asked:
                b.pass_time(0.5)
                b.renew([task.id])
                answer = await asked
            assert answer.status_code == 409
            assert answer.json()["error"] == (
                "the name 'r0' is taken: pid 71 on node-a registered under it 4.0 s ago and was heard from 0.0 s "
                "ago. Start this RaaS under another name (--name), or stop the other one: the name becomes free "
                "when it leaves or has been silent for 20 s"
            )
            assert place.holder.pid == 71 and b.state.train.held_by("r0") == {task.id}
            assert b.push(task).status == "accepted"

    asyncio.run(play())


def test_two_that_come_for_the_name_of_a_silent_one_do_not_both_get_it(placed):
    async def play():
        async with placed() as place:
            assert await place.taken(FIRST)
            third = replace(SECOND, pid=73, origin="cid")
            async with place.knocking(SECOND) as one, place.knocking(third) as other:
                place.bench.pass_time(SUSPECT_S)
                answers = [(await each).status_code for each in (one, other)]
            assert sorted(answers) == [200, 409]

    asyncio.run(play())


def test_a_successor_of_the_same_launcher_has_the_name_at_once(placed):
    async def play():
        async with placed() as place:
            assert await place.taken(FIRST)
            (task,), _ = place.bench.lease(2)
            assert await place.taken(replace(FIRST, pid=99, start=1))
            assert place.holder.pid == 99 and not place.bench.state.train.held_by("r0")
            (again,), _ = place.bench.lease(2)
            assert again.id == task.id

    asyncio.run(play())


def test_a_registration_of_a_process_that_has_died_changes_nothing(placed):
    async def play():
        async with placed() as place:
            assert await place.taken(replace(FIRST, pid=99, start=1))
            answer = await place.register(FIRST)
            assert answer.status_code == 409
            assert "start 0 of RaaS 'r0' was declared dead" in answer.json()["error"]
            assert "started pid 99 on node-a in its place" in answer.json()["error"]
            assert place.holder.incarnation == 1 and place.holder.pid == 99

    asyncio.run(play())


def test_the_same_process_registers_again_at_once(placed):
    """The first attempt ended because its connection or its reply was lost."""

    async def play():
        async with placed() as place:
            assert await place.taken(FIRST) and await place.taken(FIRST)
            place.bench.pass_time(31)
            assert place.holder.health == "gone" and await place.taken(FIRST)
            place.bench.leave()
            assert await place.taken(SECOND)
            unnamed = replace(FIRST, raas="r1", origin="")
            for _ in range(2):
                assert (await place.register(unnamed)).status_code == 200

    asyncio.run(play())


def test_two_containers_with_one_host_name_are_two_processes(placed):
    """Each is number 1 in its own."""

    async def play():
        async with placed() as place:
            assert await place.taken(replace(FIRST, pid=1))
            async with place.knocking(replace(FIRST, pid=1, origin="bob")):
                pass

    asyncio.run(play())


def test_a_restart_by_others_has_the_name_when_the_dead_one_is_suspect(placed):
    async def play():
        async with placed() as place:
            assert await place.taken(FIRST)
            async with place.knocking(replace(FIRST, pid=72, origin="bob")) as asked:
                place.bench.pass_time(SUSPECT_S - 1)
                await asyncio.sleep(0.01)
                assert not asked.done()
                place.bench.pass_time(1)
                assert (await asked).status_code == 200
            assert place.holder.pid == 72

    asyncio.run(play())


def test_a_newcomer_that_ended_while_it_waited_does_not_get_the_name(placed):
    async def play():
        async with placed(sockets=True) as place:
            assert await place.taken(FIRST)
            async with place.knocking(SECOND) as asked:
                asked.cancel()
                await asyncio.gather(asked, return_exceptions=True)
            looks = -1
            while looks != place.looks:  # it has noticed
                looks = place.looks
                await asyncio.sleep(0.05)
            place.bench.pass_time(SUSPECT_S)
            await asyncio.sleep(0.01)
            assert place.holder.pid == 71

    asyncio.run(play())


def test_a_name_outlives_a_dataflow_that_is_started_anew_and_not_the_run(placed, tmp_path):
    async def play():
        async with placed(restart=False) as place:
            async with place.knocking(SECOND) as asked:
                place.bench.pass_time(1)
                place.bench.renew([])
                assert (await asked).status_code == 409
            assert await place.taken(replace(FIRST, start=1))

    asyncio.run(play())


def test_a_resumed_run_has_no_registered_raas(placed):
    async def play():
        async with placed(restart=True) as place:
            assert await place.taken(SECOND)

    asyncio.run(play())
