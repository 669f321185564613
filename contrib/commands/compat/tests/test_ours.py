"""Our RaaS for a dataflow and a trainer of the public protocol: the contract, the weight path, and the owners of
leases."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from public_sender import PublicSender
from safetensors.numpy import load_file

from astraflow_contrib_compat.ours.contract import RaasContract, contract_app
from astraflow_contrib_compat.ours.inner import inner_app
from astraflow_contrib_compat.ours.results import public_result, sampling_of
from astraflow_contrib_compat.ours.tasks import OwnTasks
from astraflow_contrib_compat.ours.versions import OwnVersion, OwnVersions
from astraflow_contrib_compat.pickles.decoder import PickleDecoder
from astraflow_contrib_compat.pickles.encoder import encode_pickle
from astraflow_contrib_compat.weights.receiver import PublicWeights
from astraflow_contrib_compat.weights.tensors import expected_tensors
from astraflow_core.errors import Refused, WeightsError
from astraflow_weights.publish.publisher import HttpPublisher
from astraflow_wire import messages
from astraflow_wire.http.server import Server

EXAMPLE = Path(__file__).resolve().parents[4] / "examples" / "custom_raas"
KEY, TOKEN = "the-key", "run-token"
SAMPLING = messages.SamplingMessage(max_tokens=3)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sys.path.insert(0, str(EXAMPLE))
    from table_engine import write_model

    folder = tmp_path_factory.mktemp("model")
    write_model(folder)
    return folder


class Ours:
    """The adapter in front of one RaaS, that of ``examples/custom_raas``, which implements our protocol."""

    def __init__(self, model: Path) -> None:
        self.model = model
        self.sender = PublicSender()
        self.tasks = OwnTasks(["solver"], 2.0, 2, lambda g, d: public_result(g, d, {"solver": 0}))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Ours]:
        from raas import Raas
        from table_engine import TableEngine

        expected, length = expected_tensors(self.model)
        weights = PublicWeights(expected, length, "127.0.0.1", "127.0.0.1", 10)
        publisher = HttpPublisher("solver", TOKEN, host="127.0.0.1", port=0, advertise=None)
        own = OwnVersion("solver", self.model, "http", publisher, weights)
        versions = OwnVersions({"model0": own}, self.tasks, 10)
        contract = RaasContract(self.tasks, versions, "digits", "n_samples", SAMPLING, 4, 20)
        decoder = PickleDecoder(1 << 20)
        async with (
            Server(inner_app(self.tasks, "run", TOKEN), "127.0.0.1", 0) as flow,
            Server(contract_app(contract, KEY, decoder, False), "127.0.0.1", 0) as door,
            Server(self.sender.app(), "127.0.0.1", 0) as sender,
            aiohttp.ClientSession() as self.client,
        ):
            self.url, self.endpoint, self.contract = (
                door.url,
                sender.url.removeprefix("http://"),
                contract,
            )
            assert (await self.get("/status"))["status"] == "starting"
            await versions.begin()
            raas = Raas(TableEngine(self.model), flow.url, TOKEN, "solver", "mine")
            running = asyncio.create_task(raas.run())
            async with self.tasks.changed:
                await self.tasks.changed.wait_for(lambda: self.tasks.ready)
            yield self
            self.tasks.stopping = True
            await self.tasks.note()
            await asyncio.wait_for(running, 10)
            assert not self.tasks.raas
            await versions.close()
        decoder.close()

    async def get(self, path: str) -> Any:
        async with self.client.get(f"{self.url}/{KEY}{path}") as answer:
            return await answer.json()

    async def post(self, path: str, body: Any, status: int = 200) -> Any:
        """Call a route as the public dataflow does; returns the content of the envelope."""
        async with self.client.post(f"{self.url}/{KEY}{path}", data=pickle.dumps(body)) as answer:
            told = pickle.loads(await answer.read())
            assert answer.status == status and told["ok"] is (status == 200), told
            return told["result"] if told["ok"] else told["error"]

    async def pulled(self, path: str, count: int) -> list[Any]:
        found: list[Any] = []
        while len(found) < count:
            told = await self.post(path, {"max_items": 8, "timeout": 0.5})
            found += told["items"] if isinstance(told, dict) else told
        return found


def test_a_public_dataflow_uses_our_raas(model: Path) -> None:
    async def script(it: Ours) -> None:
        status, free = await it.get("/status"), await it.get("/availability")
        assert status["status"] == "ready" and free["available"] == free["max_concurrency"] == 8
        told = {
            "workflow_id": "auto-0",
            "workflow_cls": "digits",
            "gconfig_overrides": {"n_samples": 2, "max_new_tokens": 2},
        }
        assert (await it.post("/register_workflow", told))["registered"]
        data = {"prompt": "12", "answer": "12", "query_id": "q7"}
        for number in range(2):
            assert await it.post("/submit", {"data": data, "workflow_id": "auto-0"}) == {
                "task_id": number
            }
        items = await it.pulled("/pull", 2)
        assert sorted(item["task_id"] for item in items) == [0, 1]
        result = items[0]["result"]
        assert result["n_trajs"] == 2 and result["query_id"] == "q7" and len(result["rewards"]) == 2
        for trajectory in result["trajectories"]:
            (sequence,) = trajectory["sequences"]
            shape = sequence["input_ids"].shape
            assert {column.shape for column in sequence.values()} == {shape} and shape[0] == 1
            assert (
                sequence["loss_mask"][0, :2].tolist() == [0, 0]
                and sequence["loss_mask"][0, 2:].all()
            )
            assert set(sequence["versions"][sequence["loss_mask"] == 1]) == {0}
            assert sequence["attention_mask"].all() and sequence["attention_mask"].dtype == bool

        logits = load_file(model / "model.safetensors")["logits"]
        notice = {"model_id": "model0", "sender_endpoint": it.endpoint}
        for version, mode in ((1, "full"), (2, "delta")):
            logits = logits.copy()
            logits[0, version] += 50
            it.sender.put(version, logits)
            told = await it.post("/notify_version", {**notice, "version": version})
            assert told["ok"] and told["pull_result"] == {"mode": mode}
        assert (await it.post("/notify_version", {**notice, "version": 2}))["pulled"] is False
        it.sender.put(3, logits.reshape(-1)[:-1])
        told = await it.post("/notify_version", {**notice, "version": 3})
        assert told["ok"] is False and "no transfer" not in told["reason"]

        assert (await it.post("/reset_training_engine", {"timeout": 10.0}))["ready_for_eval"]
        await it.post("/eval_start", {})
        assert await it.post("/eval_submit", {"data": data, "workflow_id": "auto-0"}) == {
            "task_id": 0
        }
        (item,) = await it.pulled("/eval_pull", 1)
        (sequence,) = item["result"]["trajectories"][0]["sequences"]
        assert set(sequence["versions"][sequence["loss_mask"] == 1]) == {2}
        assert sequence["input_ids"][0, 2] in (
            1,
            2,
        )  # the answer that the new weights give with certainty
        await it.post("/eval_end", {})

        assert "unknown-id" in await it.post(
            "/submit", {"data": data, "workflow_id": "unknown-id"}, 500
        )
        assert "runs the workflow" in await it.post(
            "/register_workflow", {**notice, "workflow_id": "a", "workflow_cls": "b"}, 500
        )
        assert "min_new_tokens" in await it.post(
            "/register_workflow",
            {
                "workflow_id": "a",
                "workflow_cls": "digits",
                "gconfig_overrides": {"min_new_tokens": 1},
            },
            500,
        )
        assert "must be a pickled dict" in await it.post("/submit", [1], 500)
        assert "pathlib.PosixPath is not on the list" in await it.post(
            "/submit", {"data": Path("/")}, 500
        )
        assert "numpy.ndarray" in await it.post(
            "/submit", {"data": {"x": np.ones(2)}, "workflow_id": "auto-0"}, 500
        )
        vast = {
            **told,
            "workflow_id": "vast",
            "workflow_cls": "digits",
            "gconfig_overrides": {"max_new_tokens": 1 << 60},
        }
        await it.post("/register_workflow", vast)
        assert "max_tokens" in await it.post("/submit", {"data": data, "workflow_id": "vast"}, 500)
        async with it.client.post(f"{it.url}/submit", data=b"x") as answer:
            assert answer.status == 401
        assert await it.post("/shutdown", {}) == "shutting down" and it.contract.stopping.is_set()

    async def whole() -> None:
        async with asyncio.timeout(60), Ours(model).running() as ours:
            await script(ours)

    asyncio.run(whole())


FAULTS = {
    "short": "not every byte", "twice": "not every byte", "outside": "not every byte", "torn": "switched to version 2",
    "signal": "signalled that the transfer", "shape": "other tensors than the model",
}  # fmt: skip
DELTA_FAULTS = {"descending": "not ascending", "beyond": "not ascending, or beyond"}


@pytest.mark.parametrize("fault", [*FAULTS, *DELTA_FAULTS])
def test_what_a_sender_does_wrong_is_not_loaded(fault: str) -> None:
    """The next transfer, of the complete weights, succeeds."""
    logits = np.arange(12, dtype=np.float32).reshape(3, 4)

    async def script() -> None:
        sender = PublicSender()
        expected = {"logits": ((3, 4), "float32")}
        weights = PublicWeights(expected, 48, "127.0.0.1", "127.0.0.1", 5)
        async with Server(sender.app(), "127.0.0.1", 0) as server:
            endpoint, version = server.url.removeprefix("http://"), 1
            if fault in DELTA_FAULTS:
                sender.put(1, logits)
                assert (await weights.pull(endpoint, 1))[2] == "full"
                version = 2
            changed = logits.copy()
            changed[1, :2] += 0.123
            sender.put(version, changed)
            sender.fault = fault
            with pytest.raises(WeightsError, match={**FAULTS, **DELTA_FAULTS}[fault]):
                await weights.pull(endpoint, version)
            with pytest.raises(WeightsError, match=r"expected 9|other tensors"):
                await weights.pull(endpoint, 9)
            sender.fault = ""
            layout, buffer, mode = await weights.pull(endpoint, version)
            assert mode == "full" and bytes(buffer) == changed.tobytes()
            assert layout == (("logits", (3, 4), "float32"),)
        await weights.close()

    asyncio.run(script())


def registration(name: str) -> messages.RegisterRaas:
    return messages.RegisterRaas(raas=name, pid=1, host="h", policies=["solver"], capacity=8)


def a_task(name: str) -> messages.Task:
    return messages.Task(
        id=name, prompt_id="p", data={}, group_size=4, sampling=SAMPLING, lease_s=1, deadline_s=1
    )


def failed(raas: str, task: str, fatal: bool = False) -> messages.FailTask:
    return messages.FailTask(raas=raas, task=task, error="boom", fatal=fatal)


def test_tasks_go_to_others_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script() -> None:
        tasks = OwnTasks(["solver"], 2.0, 2, lambda group, data: "never")
        with pytest.raises(Refused, match="not \\['other'"):
            await tasks.register(
                messages.RegisterRaas(raas="x", pid=1, host="h", policies=["other"], capacity=1)
            )
        for name in ("a", "b"):
            await tasks.register(registration(name))
        assert await tasks.submit("", a_task) == 0
        assert await tasks.lease("a", 3, 0) == []  # no place for four episodes
        (given,) = await tasks.lease("a", 4, 0)
        assert await tasks.lease("b", 4, 0) == []
        await tasks.fail(failed("b", given.id))  # not its task
        await tasks.leave("a")
        (again,) = await tasks.lease("b", 4, 0)
        assert again.id == given.id
        await tasks.fail(failed("b", given.id))
        assert await tasks.pull("", 9, 0) == [
            {"task_id": 0, "result": {"ok": False, "error": "boom"}}
        ]

        await tasks.submit("", a_task)
        (given,) = await tasks.lease("b", 4, 0)
        await tasks.fail(failed("b", given.id, fatal=True))
        assert (await tasks.pull("", 9, 0))[0]["result"]["ok"] is False

        await tasks.submit("", a_task)
        (given,) = await tasks.lease("b", 4, 0)
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now + 1.5)
        tasks.check_in("b", 2)
        monkeypatch.setattr(time, "monotonic", lambda: now + 3)
        await tasks.expire()  # it is alive, and has not named the task
        assert tasks.notices(tasks.raas["b"]).revoked[0].task == given.id
        monkeypatch.setattr(time, "monotonic", lambda: now + 9)
        await tasks.expire()
        with pytest.raises(Refused, match="register"):
            tasks.check_in("b", 2)
        await tasks.register(registration("c"))
        assert len(await tasks.lease("c", 4, 0)) == 1
        assert await tasks.reset("") == (1, 0) and tasks.raas["c"].lost

    asyncio.run(script())


@pytest.mark.parametrize("dtype", ["i1", "u2", "<i4", ">i4", "f2", "f4", "f8", "?"])
def test_arrays_are_written_as_numpy_reads_them(dtype: str) -> None:
    for value in (
        np.arange(6).reshape(2, 3).astype(dtype),
        np.ones((), dtype),
        np.ones((0, 2), dtype),
        np.eye(3, dtype=dtype).T,
    ):
        found = pickle.loads(encode_pickle({"x": value}))["x"]
        assert found.dtype == value.dtype.newbyteorder("<") and np.array_equal(found, value)
        found[...] = 0  # it owns its memory


@pytest.mark.backend
def test_arrays_become_tensors() -> None:
    import torch

    value = np.arange(6, dtype=np.int32).reshape(2, 3)
    found = pickle.loads(encode_pickle({"x": value, "y": [1]}, tensors=True))
    assert found["y"] == [1] and torch.equal(found["x"], torch.from_numpy(value))


def test_sampling_of_the_public_words() -> None:
    default = messages.SamplingMessage(max_tokens=5, temperature=0.5, min_p=0.1)
    assert sampling_of({}, default) == default
    found = sampling_of({"max_new_tokens": 9, "greedy": True, "stop": "x", "top_k": -1}, default)
    assert (found.max_tokens, found.temperature, found.stop, found.top_k) == (9, 0.0, ["x"], 0)
