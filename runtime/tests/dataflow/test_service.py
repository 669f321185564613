"""The real app over a real loopback server."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import time
from collections.abc import AsyncIterator

import httpx
import msgspec
import pytest

from astraflow_core.errors import Refused
from astraflow_runtime.dataflow.http import service as dataflow_service
from astraflow_runtime.dataflow.http.service import DataflowService
from astraflow_runtime.dataflow.http.wakeups import Wakeups
from astraflow_wire.batches import decode_batch
from astraflow_wire.http.client import AsyncClient
from astraflow_wire.http.server import Server
from astraflow_wire.messages import (
    AnnouncementMessage,
    Done,
    FailTask,
    GroupPushed,
    LeasesRenewed,
    LeaseTasks,
    LeaveRaas,
    NextBatch,
    PolicySwapped,
    RaasRegistered,
    RegisterRaas,
    RegisterTrainer,
    RenewLeases,
    StopRun,
    SwapPolicy,
    TasksLeased,
    TrainerRegistered,
    VersionAnnounced,
)

TOKEN = "secret"
DEADLINE_S = 10.0
PATIENT_S = 9.0
"""How long a request may wait that is answered sooner."""


class Running:
    """A served dataflow and a client of it."""

    def __init__(self, bench, server: Server, client: AsyncClient) -> None:
        self.bench, self.server, self.client = bench, server, client

    async def post(self, path, message, expected):
        message = self.bench.stamped(message)
        return await asyncio.wait_for(
            self.client.post(path, message, expected, deadline_s=DEADLINE_S), DEADLINE_S
        )

    async def register(self, *raas: str) -> None:
        for policy in self.bench.state.streams:
            hello = RegisterTrainer(policy=policy, pid=1, host="h")
            await self.post("/v1/trainers/register", hello, TrainerRegistered)
            await self.announce(0, policy)
        for name in raas or ("r0",):
            await self.post(
                "/v1/raas/register",
                RegisterRaas(raas=name, pid=1, host="h", policies=["solver"], capacity=8),
                RaasRegistered,
            )

    async def announce(self, version: int, policy: str = "solver") -> VersionAnnounced:
        message = AnnouncementMessage(
            policy=policy, version=version, transport="x", endpoints=[], digest="d", size=1
        )
        return await self.post("/v1/versions", message, VersionAnnounced)

    async def lease(self, raas="r0", free=2, wait_s=0.0, seen=0, serving=0) -> TasksLeased:
        message = LeaseTasks(
            raas=raas, free=free, wait_s=wait_s, serving={"solver": serving}, seen={"solver": seen}
        )
        return await self.post("/v1/tasks/lease", message, TasksLeased)

    async def batch(self, version: int, wait_s: float):
        asked = NextBatch(policy="solver", version=version, wait_s=wait_s)
        message = self.bench.stamped(asked)
        body = await asyncio.wait_for(
            self.client.post_for_bytes("/v1/batches/next", message, deadline_s=DEADLINE_S),
            DEADLINE_S,
        )
        return decode_batch(body)

    async def push(self, body: bytes) -> GroupPushed:
        return await asyncio.wait_for(
            self.client.post_bytes("/v1/groups", body, GroupPushed, deadline_s=DEADLINE_S),
            DEADLINE_S,
        )


@pytest.fixture
def running(bench, config):
    @contextlib.asynccontextmanager
    async def start(changes=None, **parts) -> AsyncIterator[Running]:
        wakeups = Wakeups()
        made = bench(config(**(changes or {})), signals=wakeups, **parts)
        made.state.clock = time.monotonic
        service = DataflowService(made.flow, wakeups, TOKEN)
        server = Server(service.app, "127.0.0.1", 0)
        await server.start()
        sweep = asyncio.create_task(service.sweep())
        client = AsyncClient(server.url, TOKEN)
        try:
            yield Running(made, server, client)
        finally:
            sweep.cancel()
            await client.aclose()
            await server.stop()

    return start


def test_a_group_travels_from_a_raas_to_a_trainer(running, body):
    async def play():
        async with running({"policy__batch_sequences": 2}) as service:
            await service.register()
            task = (await service.lease()).tasks[0]
            pushed = await service.push(body(task.id, task.prompt_id))
            assert pushed.status == "accepted"
            batch = await service.batch(0, 1.0)
            assert batch.rewards.tolist() == [0.0, 1.0]

    asyncio.run(play())


def test_a_data_policy_is_swapped(running):
    def build(place, table, number):
        return Refuser()

    async def play():
        data = [{"use": "calm"}]
        async with running(
            {"prompts__data": data}, admission=[calm()], build_policy=build
        ) as service:
            message = SwapPolicy(
                id="1", place="prompts", name="calm", author="ada", at=1.0, table={"use": "refuser"}
            )
            answer = await service.post("/v1/data_policies/swap", message, PolicySwapped)
            assert answer.table["use"] == "refuser"
            assert isinstance(service.bench.state.admission.chain.policy("calm").component, Refuser)

    class Refuser:
        def admit(self, prompt):
            return False

    calm = type("calm", (), {"admit": lambda self, prompt: True})
    asyncio.run(play())


async def until(condition) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.005)


def test_a_request_for_a_batch_ends_when_the_batch_is_there(running, body):
    async def play():
        async with running({"policy__batch_sequences": 2}) as service:
            await service.register()
            task = (await service.lease()).tasks[0]
            waiting = asyncio.create_task(service.batch(0, PATIENT_S))
            trainer = service.bench.state.trainers["solver"]
            await until(lambda: trainer.waiting_since is not None)
            started = time.monotonic()
            await service.push(body(task.id, task.prompt_id))
            assert (await waiting).id == "solver-000000"
            assert time.monotonic() - started < PATIENT_S - 1

    asyncio.run(play())


def test_a_request_for_a_batch_ends_with_the_reason_when_none_comes(running):
    async def play():
        async with running() as service:
            await service.register()
            answer = await service.batch(0, 0.05)
            assert answer.ended is False
            assert answer.reason.startswith("0 of 4 sequences are available")

    asyncio.run(play())


@pytest.mark.parametrize("event", ["version", "failed task", "stop", "served version", "leave"])
def test_a_request_for_tasks_ends_early(running, event):
    async def play():
        synchronous = {"run__max_staleness": 0, "policy__batch_sequences": 2}
        async with running(synchronous) as service:
            await service.register("r0", "r1")
            task = (await service.lease("r1")).tasks[0]
            if event == "served version":
                await service.announce(1)
                await service.post("/v1/raas/leave", LeaveRaas(raas="r1", reason=""), Done)
            seen = int(event == "served version")
            waiting = asyncio.create_task(service.lease(wait_s=PATIENT_S, seen=seen))
            record = service.bench.state.fleet.get("r0")
            await until(lambda: record.waiting_since is not None or waiting.done())
            if waiting.done():
                assert event == "served version", waiting.result()
                waiting = asyncio.create_task(service.lease(wait_s=PATIENT_S, seen=seen))
                await until(lambda: record.waiting_since is not None)
            started = time.monotonic()
            if event == "version":
                await service.announce(1)
                assert [a.version for a in (await waiting).notices.announcements] == [1]
            elif event == "failed task":
                failure = FailTask(raas="r1", task=task.id, error="boom")
                await service.post("/v1/tasks/fail", failure, Done)
                assert [t.id for t in (await waiting).tasks] == [task.id]
            elif event == "leave":
                await service.post("/v1/raas/leave", LeaveRaas(raas="r1", reason=""), Done)
                assert [t.id for t in (await waiting).tasks] == [task.id]
            elif event == "stop":
                await service.post("/v1/stop", StopRun(reason="enough"), Done)
                assert (await waiting).notices.stop
            else:
                renewal = RenewLeases(
                    raas="r0", tasks=[], serving={"solver": 1}, seen={"solver": 1}
                )
                await service.post("/v1/tasks/renew", renewal, LeasesRenewed)
                assert [t.id for t in (await waiting).tasks] == [task.id]
            assert time.monotonic() - started < PATIENT_S - 1

    asyncio.run(play())


def test_news_end_a_wait_once_and_not_for_ever(running):
    async def play():
        async with running({"run__max_staleness": 0}, evals={"held": 1}) as service:
            await service.register()
            first = await service.lease(wait_s=PATIENT_S, free=0)
            assert first.notices.pins == {"solver": 0}
            started = time.monotonic()
            again = await service.lease(wait_s=0.3, free=0)
            assert again.notices.pins == {"solver": 0}
            assert time.monotonic() - started >= 0.25

    asyncio.run(play())


def test_a_second_request_of_the_same_raas_replaces_the_first(running):
    async def play():
        synchronous = {"run__max_staleness": 0, "policy__batch_sequences": 2}
        async with running(synchronous) as service:
            await service.register("r0", "r1")
            task = (await service.lease("r1")).tasks[0]
            first = asyncio.create_task(service.lease(wait_s=PATIENT_S))
            record = service.bench.state.fleet.get("r0")
            await until(lambda: record.waiting_since is not None)
            second = asyncio.create_task(service.lease(wait_s=PATIENT_S))
            assert (await first).tasks == []
            await service.post("/v1/raas/leave", LeaveRaas(raas="r1", reason=""), Done)
            assert [t.id for t in (await second).tasks] == [task.id]

    asyncio.run(play())


def test_one_freed_place_is_given_once(running):
    async def play():
        synchronous = {"run__max_staleness": 0, "policy__batch_sequences": 2}
        names = [f"r{i}" for i in range(8)]
        async with running(synchronous) as service:
            await service.register(*names)
            await service.lease("r0")
            waiting = [asyncio.create_task(service.lease(n, wait_s=0.5)) for n in names[1:]]
            fleet = service.bench.state.fleet
            await until(lambda: all(fleet.get(n).waiting_since is not None for n in names[1:]))
            await service.post("/v1/raas/leave", LeaveRaas(raas="r0", reason=""), Done)
            answers = await asyncio.gather(*waiting)
            assert sorted(len(answer.tasks) for answer in answers) == [0] * 6 + [1]

    asyncio.run(play())


def test_a_late_push_is_answered_409_with_the_reason(running, body):
    async def play():
        async with running() as service:
            await service.register()
            task = (await service.lease()).tasks[0]
            failure = FailTask(raas="r0", task=task.id, error="boom", fatal=True)
            await service.post("/v1/tasks/fail", failure, Done)
            with pytest.raises(Refused, match="the task has ended: failed") as refused:
                await service.push(body(task.id, task.prompt_id))
            assert refused.value.status == 409

    asyncio.run(play())


class Evil:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was loaded",))


@pytest.mark.parametrize(
    ("path", "content", "token", "status", "message"),
    [
        ("/v1/tasks/lease", b"", "wrong", 401, "token"),
        ("/v1/groups", b"x" * 100, None, 401, "token"),
        ("/v1/groups", b"x" * ((1 << 20) + 1), TOKEN, 413, "bytes"),
        ("/v1/groups", pickle.dumps(Evil()), TOKEN, 400, "expected a frame that begins with"),
        ("/v1/groups", b"AF1\n" + b"\xff" * 40, TOKEN, 400, "over the limits"),
        ("/v1/tasks/lease", pickle.dumps(Evil()), TOKEN, 400, "expected a msgpack LeaseTasks"),
        ("/v1/tasks/lease", b"\xc1", TOKEN, 400, "expected a msgpack LeaseTasks"),
        (
            "/v1/tasks/lease",
            msgspec.msgpack.encode({"raas": "r0", "free": "many"}),
            TOKEN,
            400,
            r"Expected `int`, got `str` - at `\$.free`",
        ),
        (
            "/v1/stop",
            msgspec.msgpack.encode({"reason": "x", "extra": 1}),
            TOKEN,
            400,
            "unknown field `extra`",
        ),
    ],
)
def test_bad_requests_are_refused_with_what_was_expected(
    running, monkeypatch, path, content, token, status, message
):
    monkeypatch.setattr(dataflow_service, "MAX_BODY_BYTES", 1 << 20)

    async def play():
        async with running() as service:
            await service.register()
            headers = {"authorization": f"Bearer {token}"} if token else {}
            async with httpx.AsyncClient(base_url=service.server.url) as client:
                answer = await client.post(path, content=content, headers=headers)
            assert answer.status_code == status
            assert_matches(answer.json()["error"], message)
            assert service.bench.state.progress.state == "running"

    asyncio.run(play())


def assert_matches(text: str, pattern: str) -> None:
    with pytest.raises(AssertionError, match=pattern):
        raise AssertionError(text)


def test_what_people_look_at(running, body):
    async def play():
        async with running(evals={"held": 1}) as service:
            await service.register()
            await service.lease(free=1)
            status = await service.client.get_json("/v1/status", deadline_s=DEADLINE_S)
            assert (status["state"], status["policies"]["solver"]["version"]) == ("running", 0)
            assert status["raas"][0]["pins"] == {"solver": 0}
            assert status["invariants_ok"]
            waits = await service.client.get_json("/v1/waits", deadline_s=DEADLINE_S)
            assert [(w["who"], w["for_whom"]) for w in waits] == [("evaluation of version 0", "r0")]
            balance = await service.client.get_json("/v1/balance", deadline_s=DEADLINE_S)
            assert balance["eval_tasks"]["running"] == 1
            health = await service.client.get_json("/v1/health", deadline_s=DEADLINE_S)
            assert health["state"] == "running"
            headers = {"authorization": f"Bearer {TOKEN}"}
            async with httpx.AsyncClient(base_url=service.server.url, headers=headers) as client:
                text = (await client.get("/metrics")).text
            assert 'astraflow_tasks{state="lost"} 0.0' in text
            assert "astraflow_invariants_ok 1.0" in text

    asyncio.run(play())


class Broken:
    def accept(self, group):
        raise ValueError("no such key")


class Hasty:
    def accept(self, group):
        return True


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        (Broken, "'Broken' raised ValueError in accept: no such key"),
        (Hasty, "'Hasty': accept returned True, expected a Verdict"),
    ],
)
def test_a_data_policy_that_is_wrong_fails_the_run_with_its_name(running, body, policy, says):
    async def play():
        async with running(data=[policy()]) as service:
            await service.register()
            task = (await service.lease()).tasks[0]
            with pytest.raises(Refused, match=says):
                await service.push(body(task.id, task.prompt_id))
            assert service.bench.state.progress.state == "failed"
            assert (await service.batch(0, 5.0)).ended

    asyncio.run(play())
