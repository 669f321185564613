"""docs/processes.md says of each endpoint what it answers and refuses; real services are held to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import httpx
import msgspec
from fastapi.testclient import TestClient
from pages import processes as page
from refusals import Refusals
from refused_groups import (
    contradicted,
    of_a_task_that_ended,
    of_an_evaluation,
    pushed,
    pushed_after_a_restart,
    pushed_by_the_process_before,
    with_an_image,
)
from refused_recovery import OTHER_PACKAGES, refused
from served_dataflow import LIMIT, TOKEN, Served, flows
from workspace import ROOT

from astraflow_core import errors
from astraflow_runtime.dataflow.fleet import pool
from astraflow_runtime.dataflow.fleet import raas as fleet
from astraflow_runtime.dataflow.http import service
from astraflow_runtime.dataflow.policies import swapping
from astraflow_wire import messages
from astraflow_wire.http.access import process_token
from astraflow_wire.http.auth import bearer
from astraflow_wire.http.connection_limits import MAX_HEAD, Limits
from astraflow_wire.http.server import Server, create_app

RUNTIME = ROOT / "runtime" / "src" / "astraflow_runtime"
PROCESSES = (ROOT / "docs" / "processes.md").read_text(encoding="utf-8")


Provocation = Callable[[], Any]
REGISTER = messages.RegisterRaas(raas="r", pid=1, host="h", policies=["solver"], capacity=1)
ASK = messages.LeaseTasks(raas="nobody", free=1, wait_s=0, serving={}, seen={})
ADD = messages.AddRaas(id="1", count=1, author="ada")
DRAIN = messages.DrainRaas(raas="r0", author="ada")
BEAT = messages.RenewLeases(raas="nobody", tasks=[], serving={}, seen={})
NEXT = messages.NextBatch(policy="solver", version=0, wait_s=0)
WITH_REWARD = msgspec.structs.replace(NEXT, named_rewards=["form"])
ACK = messages.AcknowledgeBatch(policy="solver", batch="solver-9", version=0, metrics={})
RELEASE = messages.ReleaseBatches(policy="solver", updates=0)
FAIL = messages.FailTask(raas="r0", task="train-0", error="e")
LEAVE = messages.LeaveRaas(raas="r0", reason="e")
OF_R0 = msgspec.structs.replace(BEAT, raas="r0", incarnation=1)
REVOCATION = messages.RevokeToken(role="nobody", name="ada", author="bob")
OF_NO_NAME = msgspec.structs.replace(REVOCATION, role="viewer", name="a b")
FAILED = messages.TrainerFailed(policy="solver", error="e")
VERSION = messages.AnnouncementMessage(
    policy="solver", version=0, transport="x", endpoints=[], digest="d0", size=1
)


def sent(path: str, message: Any, **changes: Any) -> Provocation:
    """The message, changed, to a fresh dataflow."""
    return lambda: Served().post(path, msgspec.structs.replace(message, **changes))


def stranger(path: str, message: Any) -> tuple[Provocation]:
    return (sent(path, message, policy="nobody"),)


def after_the_end() -> Any:
    served = Served()
    served.bench.state.stop("enough")
    return served.post("/v1/raas/add", ADD)


def lent(path: str, message: Any, **changes: Any) -> Provocation:
    """The message, changed, of a RaaS that is there."""
    return sent(path, message, raas="r0", incarnation=1, **changes)


def asked_too_often() -> Any:
    served = Served()
    with patch.object(pool, "MAX_RAAS", 3):
        served.bench.add(3)
        return served.post("/v1/raas/add", ADD)


def with_a_full_house() -> Any:
    with patch.object(fleet, "MAX_RAAS", 1):
        return sent("/v1/raas/register", REGISTER)()


def with_the_name_taken() -> Any:
    served = Served()
    fleet_of_it, clock = served.bench.state.fleet, served.bench.time
    look = service.name_holder

    def meanwhile(*asked: Any) -> Any:
        found = look(*asked)
        clock[0] += 1
        fleet_of_it.heard("r0", {}, {}, clock[0])
        return found

    with patch.object(service, "name_holder", meanwhile):
        return served.post("/v1/raas/register", msgspec.structs.replace(REGISTER, raas="r0", pid=9))


def of_an_earlier_start() -> Any:
    served = Served()
    hello = msgspec.structs.replace(REGISTER, origin="o", start=1)
    assert served.post("/v1/raas/register", hello).status_code == 200
    return served.post("/v1/raas/register", msgspec.structs.replace(hello, start=0))


def superseded(path: str, message: Any) -> Provocation:
    """The call of a process in whose place another has registered."""

    def late() -> Any:
        served = Served()
        served.bench.register_raas("r0")
        served.bench.register_trainers()
        changes = {"raas": "r0"} if hasattr(message, "raas") else {}
        return served.post(path, msgspec.structs.replace(message, incarnation=1, **changes))

    return late


def without_a_trainer(path: str, message: Any) -> tuple[Provocation, ...]:
    early = msgspec.structs.replace(message, incarnation=1)
    unknown = sent(path, message, incarnation=9)
    return (
        lambda: Served(begun=False).post(path, early),
        superseded(path, message),
        unknown,
    )


def of_no_incarnation() -> Any:
    bare = messages.encode(msgspec.structs.replace(BEAT, raas="r0"))
    return Served().post("/v1/tasks/renew", bare)


def of_one_that_left() -> Any:
    served = Served()
    served.bench.leave("r0")
    return served.post("/v1/tasks/renew", OF_R0)


def with_a_batch_under_way() -> Any:
    served = Served().filled()
    assert served.bench.next_batch(0) is not None
    served.bench.announce(1)
    return served.post("/v1/batches/next", msgspec.structs.replace(NEXT, version=1))


def after(newest: int, **changes: Any) -> Provocation:
    def announce() -> Any:
        served = Served()
        served.bench.announce(newest)
        return served.post("/v1/versions", msgspec.structs.replace(VERSION, **changes))

    return announce


class Picky:
    """Draws, and takes over no state but its own."""

    def __init__(self, **keys: Any) -> None:
        self.keys = keys

    def draw(self, count: int, fresh: Any, kept: Any, version: int) -> None:
        return None

    def state_dict(self) -> dict[str, Any]:
        return self.keys

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state != self.keys:
            raise ValueError("of other keys")


class Open:
    def admit(self, prompt: object) -> bool:
        return True


def swapped(policy: str = "Picky", place: str = "prompts", **table: Any) -> Provocation:
    def build(place: str, table: Any, number: int) -> Any:
        if table.use not in ("Picky", "Open"):
            raise errors.PluginError(f"no {table.use} is installed")
        return Picky(**table.options) if table.use == "Picky" else Open()

    def swap() -> Any:
        served = Served(
            tables=[{"use": "Picky"}, {"use": "Open"}],
            admission=[Picky(), Open()],
            build_policy=build,
        )
        message = messages.SwapPolicy(
            id="1", place=place, name=policy, author="ada", at=0.0, table=table
        )
        return served.post("/v1/data_policies/swap", message)

    return swap


def swapped_too_often() -> Any:
    with patch.object(swapping, "MAX_SWAPS", 0):
        return swapped(use="Picky")()


PROVOKED: dict[str, list[tuple[Provocation, ...]]] = {
    "/v1/raas/register": [
        (sent("/v1/raas/register", REGISTER, capacity=0),),
        (sent("/v1/raas/register", REGISTER, policies=["nobody"]),),
        (with_the_name_taken,),
        (of_an_earlier_start,),
        (with_a_full_house,),
        (sent("/v1/raas/register", REGISTER, packages=OTHER_PACKAGES),),
    ],
    "/v1/raas/add": [
        (sent("/v1/raas/add", ADD, count=0),),
        (after_the_end,),
        (asked_too_often,),
    ],
    "/v1/raas/drain": [
        (sent("/v1/raas/drain", DRAIN, raas="nobody"),),
        (sent("/v1/raas/drain", DRAIN),),
    ],
    "/v1/tasks/lease": [
        (lent("/v1/tasks/lease", ASK, serving={"nobody": 0}),),
        (sent("/v1/tasks/lease", ASK), sent("/v1/tasks/lease", ASK, raas="r0", incarnation=9)),
        (superseded("/v1/tasks/lease", ASK),),
    ],
    "/v1/tasks/renew": [
        (lent("/v1/tasks/renew", BEAT, seen={"nobody": 0}),),
        (
            lent("/v1/tasks/renew", BEAT, metrics={"tokens_generated": -1.0}),
            lent("/v1/tasks/renew", BEAT, metrics={"solver/probe_version": 0.0}),
        ),
        (
            sent("/v1/tasks/renew", BEAT),
            sent("/v1/tasks/renew", BEAT, raas="r0", incarnation=9),
            of_one_that_left,
        ),
        (superseded("/v1/tasks/renew", BEAT),),
    ],
    "/v1/tasks/fail": [
        (
            sent("/v1/tasks/fail", FAIL, incarnation=9),
            sent("/v1/tasks/fail", FAIL, raas="nobody", incarnation=1),
        ),
        (superseded("/v1/tasks/fail", FAIL),),
    ],
    "/v1/raas/leave": [
        (
            sent("/v1/raas/leave", LEAVE, incarnation=9),
            sent("/v1/raas/leave", LEAVE, raas="nobody", incarnation=1),
        ),
        (superseded("/v1/raas/leave", LEAVE),),
    ],
    **refused(sent, superseded),
    "/v1/batches/next": [
        stranger("/v1/batches/next", NEXT),
        without_a_trainer("/v1/batches/next", NEXT),
        (sent("/v1/batches/next", NEXT, version=7),),
        (with_a_batch_under_way,),
        (lambda: Served().filled().post("/v1/batches/next", WITH_REWARD),),
    ],
    "/v1/batches/ack": [
        stranger("/v1/batches/ack", ACK),
        without_a_trainer("/v1/batches/ack", ACK),
        (sent("/v1/batches/ack", ACK, version=9),),
        (sent("/v1/batches/ack", ACK),),
    ],
    "/v1/batches/release": [
        stranger("/v1/batches/release", RELEASE),
        without_a_trainer("/v1/batches/release", RELEASE),
        (sent("/v1/batches/release", RELEASE, updates=3),),
    ],
    "/v1/trainers/failed": [
        stranger("/v1/trainers/failed", FAILED),
        without_a_trainer("/v1/trainers/failed", msgspec.structs.replace(FAILED, incarnation=1)),
    ],
    "/v1/versions": [
        stranger("/v1/versions", VERSION),
        without_a_trainer("/v1/versions", VERSION),
        (after(5, version=3),),
        (after(5, version=5, digest="another"),),
    ],
    "/v1/access/revoke": [
        (
            lambda: Served().post("/v1/access/revoke", REVOCATION),
            lambda: Served().post("/v1/access/revoke", OF_NO_NAME),
        ),
    ],
    "/v1/data_policies/swap": [
        (swapped(place="nobody", use="Open"), swapped(policy="nobody", use="Open")),
        (
            swapped(unknown=1),
            swapped(use="Picky", name="other"),
            swapped(use="nothing"),
            swapped(policy="Open", use="Picky"),
            swapped(use="Picky", other=1),
        ),
        (swapped(),),
        (swapped(use="os:environ"),),
        (swapped_too_often,),
    ],
    "/v1/groups": [
        (contradicted,),
        (pushed(rewards=(0.0, 1e30)), pushed(length=9)),
        (with_an_image(), with_an_image("0" * 64)),
        (
            pushed(prompt="another"),
            pushed(eval_set="held"),
            pushed(rewards=(0.0, 1.0, 0.0)),
            pushed(late=1),
            pushed(rejected=2**31 - 1),
        ),
        (pushed(version=3), of_an_evaluation),
        (pushed(policies=("nobody",)),),
        (
            pushed(raas="r1"),
            of_a_task_that_ended,
            lambda: Served().post("/v1/groups", flows.group_body("train-77", "p0")),
        ),
        (pushed(incarnation=9),),
        *((pushed_by_the_process_before,), (pushed_after_a_restart,)),
    ],
}
"""Path -> for each refusal that is documented, in that order, requests that are refused so."""


def documented() -> dict[str, list[tuple[int, str]]]:
    return {e.path: e.refusals() for e in page.endpoints(page.dataflow_app()) if e.refusals()}


def test_every_documented_refusal_is_one_and_every_refusal_is_documented(
    refusals: Refusals,
) -> None:
    assert PROVOKED.keys() == documented().keys()
    for path, described in documented().items():
        assert len(PROVOKED[path]) == len(described), f"{path}: {described}"
        for (status, when), provocations in zip(described, PROVOKED[path], strict=True):
            assert f"| POST `{path}` | {status} | {when.rstrip('.')} |" in PROCESSES
            for provoke in provocations:
                answer = provoke()
                assert answer.status_code == status, f"{path}, {when}: {answer.text}"
                assert answer.json()["error"]
    state_failed()
    without_room()
    assert of_no_incarnation().status_code == 400
    assert of_another_raas().status_code == 403
    missed = refusals.never_raised(RUNTIME / "dataflow")
    assert not missed, (
        f"refused at {missed}: say so in the docstring of the message (wire/messages.py, wire/groups.py), "
        "as a line `STATUS: when.`, and provoke it here"
    )


def state_failed() -> Any:
    class Broken:
        def accept(self, group: object) -> None:
            raise errors.PluginError("no verdict")

    served = Served(data=[Broken()])
    task = served.task()
    answer = served.post("/v1/groups", flows.group_body(task.id, task.prompt_id))
    assert served.bench.state.progress.state.value == "failed"
    return answer


def crashed() -> Any:
    served = Served()
    served.bench.state.fleet.heard = None
    return served.post("/v1/tasks/renew", OF_R0)


def without_room() -> Any:
    served = Served()
    records = type(served.bench.state.records)
    full = "No space left on device"
    with patch.multiple(records, unwritten=full, write_error=full):
        return served.post("/v1/tasks/renew", OF_R0)


def without_a_token() -> Any:
    return Served().client.get("/v1/status", headers={"Authorization": "Bearer another"})


def of_a_viewer() -> Any:
    return Served().client.post("/v1/stop", headers=bearer(process_token(TOKEN, "viewer", "ada")))


def of_another_raas() -> Any:
    shown, renew = bearer(process_token(TOKEN, "raas", "r1")), messages.encode(OF_R0)
    return Served().client.post("/v1/tasks/renew", headers=shown, content=renew)


def served_over_sockets(limits: Limits | None = None, **headers: str) -> Any:
    async def main() -> httpx.Response:
        app = create_app("dataflow", TOKEN, LIMIT)
        async with (
            Server(app, "127.0.0.1", 0, limits=limits) as server,
            httpx.AsyncClient(base_url=server.url) as client,
        ):
            return await client.get("/v1/status", headers=headers)

    return asyncio.run(main())


EVERYWHERE: dict[tuple[str, int], Provocation] = {
    ("any", 401): without_a_token,
    ("any", 403): of_a_viewer,
    ("any", 404): lambda: Served().client.get("/v1/nothing"),
    ("any", 405): lambda: Served().client.get("/v1/groups"),
    ("any", 413): lambda: Served().post("/v1/groups", bytes(LIMIT + 1)),
    ("any", 431): lambda: served_over_sockets(Long="x" * MAX_HEAD),
    ("any", 500): crashed,
    ("any", 503): lambda: served_over_sockets(Limits(0, 0, 0)),
    ("POST", 400): lambda: Served().post("/v1/tasks/fail", b"\x93nonsense"),
    ("POST", 409): state_failed,
    ("POST", 507): without_room,
}


def test_what_every_endpoint_may_answer() -> None:
    described = {("any", status) for status in page.ANY_ROUTE}
    described |= {("POST", status) for status in page.ANY_POST}
    assert EVERYWHERE.keys() == described
    for (of, status), provoke in EVERYWHERE.items():
        answer = provoke()
        assert answer.status_code == status, (of, answer.text)
        assert answer.json()["error"], of
        assert (
            f"| {status} | {(page.ANY_ROUTE if of == 'any' else page.ANY_POST)[status]} |"
            in PROCESSES
        )


def test_a_raas_refuses_alike() -> None:
    client = TestClient(page.raas_app())
    for method, path, status in (("GET", "/v1/nothing", 404), ("POST", "/v1/health", 405)):
        answer = client.request(method, path)
        assert (answer.status_code, list(answer.json())) == (status, ["error"])
    assert client.request("GET", "/v1/health", content=bytes(2 << 20)).status_code == 413
