"""docs/processes.md says of each endpoint what it answers and refuses; real services are held to it."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
from fastapi.testclient import TestClient
from pages import processes as page
from pages import views
from refusals import Refusals
from workspace import ROOT, tree_of

from astraflow_core import errors
from astraflow_core.dataflow import service
from astraflow_core.dataflow.balance import Step
from astraflow_core.dataflow.service import DataflowService
from astraflow_core.dataflow.wakeups import Wakeups
from astraflow_core.wire import messages
from astraflow_core.wire.frames import Frame, decode_header, encode_frame
from astraflow_core.wire.groups import GroupHeader

CORE = ROOT / "core" / "src" / "astraflow_core"
PROCESSES = (ROOT / "docs" / "processes.md").read_text(encoding="utf-8")
TOKEN = "of-this-run"
LIMIT = 1 << 20
"""Bytes of a body, here."""


def load(file: Path) -> ModuleType:
    """A module that is in no package."""
    spec = importlib.util.spec_from_file_location(f"loaded_{file.parent.name}_{file.stem}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


flows = load(ROOT / "core" / "tests" / "dataflow" / "conftest.py")


class Served:
    """A dataflow with trainer and RaaS ``r0`` present, behind its real app."""

    def __init__(
        self, begun: bool = True, tables: Sequence[dict[str, Any]] = (), **parts: Any
    ) -> None:
        wakeups = Wakeups()
        config = flows.make_config(eval__every=1, prompts__data=tables, balance__every=1)
        self.bench = flows.make_bench(config, signals=wakeups, **parts)
        if begun:
            self.bench.begin()
        with patch.object(service, "MAX_BODY_BYTES", LIMIT):
            app = DataflowService(self.bench.flow, wakeups, TOKEN).app
        headers = {"Authorization": f"Bearer {TOKEN}"}
        self.client = TestClient(app, raise_server_exceptions=False, headers=headers)

    def post(self, path: str, message: Any) -> Any:
        body = message if isinstance(message, bytes) else messages.encode(message)
        return self.client.post(path, content=body)

    def task(self, raas: str = "r0") -> Any:
        """A training task that ``raas`` holds."""
        (task,), _ = self.bench.lease(2, raas)
        return task


Provocation = Callable[[], Any]
REGISTER = messages.RegisterRaas(raas="r", pid=1, host="h", policies=["solver"], capacity=1)
TRAINER = messages.RegisterTrainer(policy="solver", pid=1, host="h")
ASK = messages.LeaseTasks(raas="nobody", free=1, wait_s=0, serving={}, seen={})
ADD = messages.AddRaas(id="1", count=1, author="ada")
DRAIN = messages.DrainRaas(raas="r0", author="ada")
BEAT = messages.RenewLeases(raas="nobody", tasks=[], serving={}, seen={})
NEXT = messages.NextBatch(policy="solver", version=0, wait_s=0)
ACK = messages.AcknowledgeBatch(policy="solver", batch="solver-9", version=0, metrics={})
RELEASE = messages.ReleaseBatches(policy="solver", updates=0)
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


def before_the_trainer() -> Any:
    return Served(begun=False).post("/v1/batches/next", NEXT)


def with_a_batch_under_way() -> Any:
    served = Served()
    for _ in range(4):
        served.bench.push(served.task())
    assert served.bench.next_batch(0) is not None
    served.bench.announce(1)
    return served.post("/v1/batches/next", msgspec.structs.replace(NEXT, version=1))


def after(newest: int, **changes: Any) -> Provocation:
    def announce() -> Any:
        served = Served()
        served.bench.announce(newest)
        return served.post("/v1/versions", msgspec.structs.replace(VERSION, **changes))

    return announce


def pushed(raas: str = "r0", **group: Any) -> Provocation:
    def push() -> Any:
        served = Served()
        task = served.task()
        prompt = group.pop("prompt", task.prompt_id)
        return served.post("/v1/groups", flows.group_body(task.id, prompt, raas, **group))

    return push


def contradicted() -> Any:
    served = Served()
    task = served.task()
    frame = Frame(flows.group_body(task.id, task.prompt_id))
    header = decode_header(frame, GroupHeader)
    wrong = [msgspec.structs.replace(s, min_version=7) for s in header.sequences]
    columns = [np.frombuffer(buffer, np.uint8) for buffer in frame.buffers]
    body = encode_frame(msgspec.structs.replace(header, sequences=wrong), columns)
    return served.post("/v1/groups", bytes(body))


def of_an_evaluation() -> Any:
    served = Served(evals={"held": 2})
    task = next(task for task in served.bench.lease()[0] if task.eval_set)
    served.bench.announce(1)
    body = flows.group_body(task.id, task.prompt_id, version=1, rewards=(0.0,), eval_set="held")
    return served.post("/v1/groups", body)


def of_a_task_that_ended() -> Any:
    served = Served()
    served.bench.register_raas("r1")
    task = served.task()
    served.bench.push(task)
    return served.post("/v1/groups", flows.group_body(task.id, task.prompt_id, "r1"))


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


PROVOKED: dict[str, list[tuple[Provocation, ...]]] = {
    "/v1/raas/register": [
        (sent("/v1/raas/register", REGISTER, capacity=0),),
        (sent("/v1/raas/register", REGISTER, policies=["nobody"]),),
    ],
    "/v1/raas/add": [
        (sent("/v1/raas/add", ADD, count=0),),
        (after_the_end,),
    ],
    "/v1/raas/drain": [
        (sent("/v1/raas/drain", DRAIN, raas="nobody"),),
        (sent("/v1/raas/drain", DRAIN),),
    ],
    "/v1/tasks/lease": [(sent("/v1/tasks/lease", ASK),)],
    "/v1/tasks/renew": [(sent("/v1/tasks/renew", BEAT),)],
    "/v1/trainers/register": [
        stranger("/v1/trainers/register", TRAINER),
        (sent("/v1/trainers/register", TRAINER, updates=(5,)),),
    ],
    "/v1/batches/next": [
        stranger("/v1/batches/next", NEXT),
        (before_the_trainer,),
        (sent("/v1/batches/next", NEXT, version=7),),
        (with_a_batch_under_way,),
    ],
    "/v1/batches/ack": [
        stranger("/v1/batches/ack", ACK),
        (sent("/v1/batches/ack", ACK, version=9),),
        (sent("/v1/batches/ack", ACK),),
    ],
    "/v1/batches/release": [
        stranger("/v1/batches/release", RELEASE),
        (sent("/v1/batches/release", RELEASE, updates=3),),
    ],
    "/v1/trainers/failed": [stranger("/v1/trainers/failed", FAILED)],
    "/v1/versions": [
        stranger("/v1/versions", VERSION),
        (after(5, version=3),),
        (after(5, version=5, digest="another"),),
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
    ],
    "/v1/groups": [
        (contradicted,),
        (
            pushed(prompt="another"),
            pushed(eval_set="held"),
            pushed(rewards=(0.0, 1.0, 0.0)),
        ),
        (pushed(version=3), of_an_evaluation),
        (pushed(policies=("nobody",)),),
        (
            pushed(raas="r1"),
            of_a_task_that_ended,
            lambda: Served().post("/v1/groups", flows.group_body("train-77", "p0")),
        ),
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
    missed = refusals.never_raised(CORE / "dataflow")
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
    return served.post("/v1/tasks/renew", BEAT)


def without_a_token() -> Any:
    return Served().client.get("/v1/status", headers={"Authorization": "Bearer another"})


EVERYWHERE: dict[tuple[str, int], Provocation] = {
    ("any", 401): without_a_token,
    ("any", 404): lambda: Served().client.get("/v1/nothing"),
    ("any", 405): lambda: Served().client.get("/v1/groups"),
    ("any", 413): lambda: Served().post("/v1/groups", bytes(LIMIT + 1)),
    ("any", 500): crashed,
    ("POST", 400): lambda: Served().post("/v1/tasks/fail", b"\x93nonsense"),
    ("POST", 409): state_failed,
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


# --- what GET answers --------------------------------------------------------------------------


def lively() -> Served:
    """A dataflow of which every part of its status has something to show."""
    served = Served(evals={"held": 2})
    bench = served.bench
    tasks, _ = bench.lease(10)
    for task in tasks:
        bench.push(task)
    bench.next_batch(0)
    bench.lease(2)
    for version in range(2):  # the first step begins the windows of the balance
        bench.state.balance.brought("r0", "solver", 6, True)
        step = Step(0.0, 0, 0, version, again=False, done=False)
        bench.state.balance.stepped("solver", step, float(version), 1, {})
    return served


def test_views_of_the_dataflow_hold_what_is_described() -> None:
    served = lively()
    shown = {e.path for e in page.endpoints(page.dataflow_app()) if e.method == "GET"}
    assert views.DATAFLOW.keys() == shown - page.NOT_JSON.keys()
    for path, view in views.DATAFLOW.items():
        value = served.client.get(path).json()
        unknown, known = views.undescribed(value, view)
        assert not unknown, f"GET {path} holds {unknown}; describe it in scripts/pages/views.py"
        assert known == view.keys(), f"GET {path} lacks {sorted(view.keys() - known)}"
    assert served.client.get("/metrics").text.startswith("# HELP")


def test_views_of_a_raas_hold_what_is_described() -> None:
    (status,) = (
        node
        for node in ast.walk(tree_of(CORE / "raas" / "service.py"))
        if isinstance(node, ast.FunctionDef) and node.name == "status"
    )
    (shown,) = (n.value for n in ast.walk(status) if isinstance(n, ast.Return))
    assert isinstance(shown, ast.Dict)
    assert {ast.literal_eval(key) for key in shown.keys if key} == views.RAAS["/v1/status"].keys()
    health = TestClient(page.raas_app()).get("/v1/health").json()
    assert health.keys() == views.RAAS["/v1/health"].keys()


def test_a_key_that_nobody_describes_is_found() -> None:
    view = {"a.NAME.b": "", "c.N.d": "", "e": ""}
    whole = {"a": {"x": {"b": 1}}, "c": [{"d": 1}], "e": {"anything": 2}}
    assert views.undescribed(whole, view) == ([], set(view))
    new = {"a": {"x": {"b": 1, "z": 1}}, "c": [{"d": 1, "z": 2}], "f": 1}
    assert sorted(views.undescribed(new, view)[0]) == ["a.NAME.z", "c.N.z", "f"]
