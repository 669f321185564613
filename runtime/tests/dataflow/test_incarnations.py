"""Messages of a dead process that arrive after its successor has registered change nothing."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import httpx
import msgspec
import pytest

from astraflow_runtime.dataflow.http.service import DataflowService
from astraflow_runtime.dataflow.http.wakeups import Wakeups
from astraflow_wire import messages
from astraflow_wire.batches import NoBatch, decode_batch

pytestmark = pytest.mark.timeout(30)

ONE_BATCH = {"run__max_staleness": 0, "policy__batch_sequences": 2}
ASK = messages.LeaseTasks(raas="r0", free=2, wait_s=20, serving={"solver": 0}, seen={"solver": 0})
NEXT = messages.NextBatch(policy="solver", version=0, wait_s=20)


@pytest.fixture
def served(bench, config):
    """(bench, post): a dataflow with a trainer and ``r0``, and how to send it a message as ``incarnation``."""

    @asynccontextmanager
    async def start(begun=True, **changes):
        wakeups = Wakeups()
        b = bench(config(**{**ONE_BATCH, **changes}), signals=wakeups)
        if begun:
            b.begin()
        app = DataflowService(b.flow, wakeups, "").app
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://flow") as http:

            async def post(path, message, incarnation=None):
                if incarnation is not None:
                    message = msgspec.structs.replace(message, incarnation=incarnation)
                body = message if isinstance(message, bytes) else messages.encode(message)
                return await http.post(path, content=body, timeout=20)

            yield b, post

    return start


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


def test_what_a_dead_trainer_has_sent_is_not_its_successors(served):
    async def play():
        async with served() as (b, post):
            (task,), _ = b.lease(2)
            b.push(task)
            batch = b.next_batch(0)
            b.register_trainers()
            assert b.next_batch(0).id == batch.id
            late = {
                "/v1/batches/ack": messages.AcknowledgeBatch(
                    policy="solver", batch=batch.id, version=0, metrics={}
                ),
                "/v1/versions": messages.AnnouncementMessage(
                    policy="solver", version=1, transport="x", endpoints=[], digest="d", size=1
                ),
                "/v1/batches/release": messages.ReleaseBatches(policy="solver", updates=0),
                "/v1/trainers/failed": messages.TrainerFailed(policy="solver", error="NaN"),
                "/v1/batches/next": NEXT,
            }
            for path, message in late.items():
                answer = await post(path, message, incarnation=1)
                assert answer.status_code == 409, path
                said = answer.json()["error"]
                assert "incarnation 1 of the trainer of 'solver' is superseded" in said
                assert "registered 0.0 s ago: incarnation 2, pid 2 on h" in said
            assert b.state.streams["solver"].updates == 0
            assert b.state.versions.newest["solver"] == 0
            assert b.state.progress.state.value == "running"
            done = await post("/v1/batches/ack", late["/v1/batches/ack"], incarnation=2)
            assert done.status_code == 200 and b.state.streams["solver"].updates == 1

    asyncio.run(play())


def test_a_trainer_that_cannot_start_fails_the_run_without_a_number_while_there_is_none(served):
    async def play():
        async with served(begun=False) as (b, post):
            failed = messages.TrainerFailed(policy="solver", error="no such model")
            assert (await post("/v1/trainers/failed", failed)).status_code == 200
            assert "no such model" in b.state.progress.reason
        async with served() as (b, post):
            answer = await post("/v1/trainers/failed", failed)
            assert answer.status_code == 400 and "`incarnation` is missing" in answer.text
            assert b.state.progress.state.value == "running"
            assert not b.state.trainers["solver"].failed

    asyncio.run(play())


def test_a_raas_that_never_registered_must_register(served):
    async def play():
        async with served() as (b, post):
            (task,), _ = b.lease(2)
            for path, message in {
                "/v1/tasks/fail": messages.FailTask(raas="new", task=task.id, error="x"),
                "/v1/raas/leave": messages.LeaveRaas(raas="new", reason="x"),
                "/v1/tasks/renew": messages.RenewLeases(raas="new", tasks=[], serving={}, seen={}),
                "/v1/tasks/lease": msgspec.structs.replace(ASK, raas="new"),
            }.items():
                answer = await post(path, message, incarnation=1)
                assert answer.status_code == 404, path
                assert "RaaS 'new' is not registered; it must register" in answer.json()["error"]
            assert b.state.train.held_by("r0") == {task.id}

    asyncio.run(play())


def test_a_late_request_for_a_batch_does_not_end_that_of_the_successor(served):
    async def play():
        async with served() as (b, post):
            (task,), _ = b.lease(2)
            b.register_trainers()
            waiting = asyncio.create_task(post("/v1/batches/next", NEXT, incarnation=2))
            await until(lambda: b.state.trainers["solver"].waiting_since is not None)
            assert (await post("/v1/batches/next", NEXT, incarnation=1)).status_code == 409
            b.push(task)
            batch = decode_batch((await waiting).content)
            assert not isinstance(batch, NoBatch)

    asyncio.run(play())


def test_what_a_dead_raas_has_sent_is_not_its_successors(served, body):
    async def play():
        async with served() as (b, post):
            (task,), _ = b.lease(2)
            b.register_raas("r0")
            (again,), _ = b.lease(2)
            assert again.id == task.id, "its leases were returned"
            group = body(task.id, task.prompt_id, incarnation=1)
            versions = {"solver": 0}
            late = {
                "/v1/groups": group,
                "/v1/tasks/fail": messages.FailTask(raas="r0", task=task.id, error="x", fatal=True),
                "/v1/raas/leave": messages.LeaveRaas(raas="r0", reason="stopped"),
                "/v1/tasks/renew": messages.RenewLeases(
                    raas="r0", tasks=[], serving={}, seen=versions
                ),
                "/v1/tasks/lease": ASK,
            }
            for path, message in late.items():
                answer = await post(path, message, None if path == "/v1/groups" else 1)
                assert answer.status_code == 409, path
                assert "incarnation 1 of RaaS 'r0' is superseded" in answer.json()["error"]
            record = b.state.fleet.get("r0")
            assert record.health == "alive" and record.serving == versions
            assert b.state.train.held_by("r0") == {task.id}
            assert b.push(again).status == "accepted"

    asyncio.run(play())


def test_a_request_of_a_dead_raas_that_waits_gets_no_task(served):
    async def play():
        async with served() as (b, post):
            b.register_raas("r1")
            (task,), _ = b.lease(2, "r1")
            waiting = asyncio.create_task(post("/v1/tasks/lease", ASK, incarnation=1))
            await until(lambda: b.state.fleet.get("r0").waiting_since is not None)
            b.register_raas("r0")
            answer = messages.decode((await waiting).content, messages.TasksLeased)
            assert answer.tasks == []
            b.leave("r1")
            (own,), _ = b.lease(2)
            assert own.id == task.id

    asyncio.run(play())


def test_a_group_that_was_taken_is_still_known_as_taken(served, body):
    """A push that is repeated after its process had to register again changes nothing, and its reply says so."""

    async def play():
        async with served() as (b, post):
            (task,), _ = b.lease(2)
            group = body(task.id, task.prompt_id, incarnation=1)
            first = await post("/v1/groups", group)
            b.register_raas("r0")
            second = await post("/v1/groups", group)
            told = [
                messages.decode(r.content, messages.GroupPushed).status for r in (first, second)
            ]
            assert told == ["accepted", "duplicate"]

    asyncio.run(play())


def test_a_dataflow_that_restarts_counts_on(bench, config, tmp_path):
    b = bench(config(), journal=tmp_path / "journal").begin("r0", "r1")
    b.register_raas("r0")
    b.register_trainers()

    def numbers():
        fleet = b.state.fleet
        return [fleet.get("r0").incarnation, fleet.get("r1").incarnation,
                b.state.trainers["solver"].incarnation]  # fmt: skip

    assert numbers() == [2, 1, 2]
    b.restart()
    assert numbers() == [2, 1, 2]
    b.leave("r0")
    b.register_raas("r0")
    b.restart(resumed=True)
    b.register_trainers()
    b.register_raas("r0")
    assert numbers() == [4, 1, 3]
