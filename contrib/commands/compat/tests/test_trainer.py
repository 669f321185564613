"""A trainer of the public protocol trains a policy of a run of ours."""

from __future__ import annotations

import asyncio
import json
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from public_sender import PublicSender
from safetensors.numpy import load_file

from astraflow_contrib_compat.trainer.rows import public_batch
from astraflow_core.types import Batch
from astraflow_testing.runs import TABLE_RUN, User
from astraflow_wire.http.server import Server

EXAMPLE = Path(__file__).resolve().parents[4] / "examples" / "custom_raas"


def test_a_batch_is_a_padded_rectangle() -> None:
    lengths = np.array([3, 1, 2], np.int32)
    tokens = np.arange(1, 7, dtype=np.int32)
    batch = Batch(
        id="b", policy="solver", version=4, lengths=lengths, tokens=tokens,
        loss_mask=np.array([0, 1, 1, 0, 0, 1], bool), logprobs=np.float32([0, -1, -2, 0, 0, -3]),
        versions=np.int32([-1, 3, 4, -1, -1, 4]), rewards=np.float32([1, 0, 0.5]),
        group=np.int64([7, 7, 8]), trajectory=np.int64([0, 1, 2]), group_size=np.int32([2, 2, 1]),
        group_mean=np.float32([0.5, 0.5, 0.5]), group_std=np.float32([0.5, 0.5, 0]),
    )  # fmt: skip
    found = public_batch(batch)
    assert found["input_ids"].tolist() == [[1, 2, 3], [4, 0, 0], [5, 6, 0]]
    assert found["attention_mask"].tolist() == [
        [True] * 3,
        [True, False, False],
        [True, True, False],
    ]
    assert found["loss_mask"].tolist() == [[0, 1, 1], [0, 0, 0], [0, 1, 0]]
    assert found["logprobs"].tolist() == [[0, -1, -2], [0, 0, 0], [0, -3, 0]]
    assert found["versions"].tolist() == [[-1, 3, 4], [-1, 0, 0], [-1, 4, 0]]
    kinds = {
        name: found[name].dtype.name
        for name in ("input_ids", "loss_mask", "versions", "group_id", "rewards")
    }
    assert list(kinds.values()) == ["int32", "int32", "int32", "int64", "float32"]
    assert found["group_reward_std"].tolist() == [0.5, 0.5, 1.0]
    assert found["normalized_rewards"] == pytest.approx([1, -1, 0], abs=1e-4)
    assert found["prompt_id"] == ["7", "7", "8"]


class PublicTrainer:
    """Calls the routes as the public trainer does."""

    def __init__(self, client: aiohttp.ClientSession, url: str) -> None:
        self.client, self.url = client, url

    async def call(self, path: str, body: Any = None, status: int = 200) -> Any:
        method = "GET" if body is None else "POST"
        data = None if body is None else pickle.dumps(body)
        async with self.client.request(method, self.url + path, data=data) as answer:
            told = await answer.read()
            assert answer.status == status, told
            return pickle.loads(told) if status == 200 else json.loads(told)["error"]


async def train(user: User, trainer: PublicTrainer, model: Path, steps: int) -> None:
    """The public trainer's loop, with calls that must be refused."""
    sender, logits = PublicSender(), load_file(model / "model.safetensors")["logits"]
    async with Server(sender.app(), "127.0.0.1", 0) as server:
        ready = {"train_batch_size": 32, "sender_endpoint": server.url.removeprefix("http://")}
        assert "POST /ready first" in await trainer.call("/batch", status=400)
        assert "batch_sequences" in await trainer.call("/ready", {"train_batch_size": 7}, 400)
        assert "cannot continue" in await trainer.call("/ready", {"recovered_version": 3}, 400)
        assert "there are model0" in await trainer.call("/ready", {"model_id": "other"}, 404)
        assert "not on the list" in await trainer.call("/ready", {"model_id": Path("/")}, 500)
        assert (
            await trainer.call("/ready", ready)
            == await trainer.call("/ready", ready)
            == {"ok": True}
        )
        for step in range(steps):
            assert "the newest is" in await trainer.call(f"/batch?version={step + 5}", status=400)
            told = await trainer.call(f"/batch?model_id=model0&version={step}")
            again = await trainer.call(f"/batch?version={step}")  # the reply of the first was lost
            assert np.array_equal(told["batch"]["input_ids"], again["batch"]["input_ids"])
            batch = told["batch"]
            assert batch["input_ids"].shape[0] == 32 and told["buffer_stats"]
            trained = batch["loss_mask"] == 1
            assert (batch["versions"][trained] <= step).all() and (
                batch["logprobs"][trained] < 0
            ).all()
            logits = logits.copy()
            logits[0, step] += 1
            sender.put(step + 1, logits)
            assert "one more than" in await trainer.call(
                "/notify_version", {"version": step + 2}, 400
            )
            if step == 1:
                sender.fault = "torn"
                assert "switched to version" in await trainer.call(
                    "/notify_version", {"version": 2}, 500
                )
                sender.fault = ""
            notice = {"version": step + 1, "run_eval": False, "model_id": "model0"}
            told = await trainer.call("/notify_version", notice)
            assert told["ok"] and told["weight_transfer_info"] == {"use_full": int(step != 2)}
            if step < steps - 1:  # with the last version the run ends, and the adapter with it
                assert await trainer.call("/notify_version", notice) == told
                assert await trainer.call("/save_buffer", {}) == {"ok": True}


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_run_is_trained_by_a_public_trainer(user: User) -> None:
    """Dataflow, RaaS and adapter are real processes; the trainer is this test."""
    model = user.directory / "model"
    assert (
        subprocess.run([sys.executable, EXAMPLE / "table_engine.py", model], timeout=60).returncode
        == 0
    )
    text = re.sub(r"(?m)^model = .*$", f'model = "{model}"', TABLE_RUN)
    file = user.write("table.toml", re.sub(r"(?m)^steps = .*$", "steps = 3", text))
    door = user.write(
        "compat.toml", 'listen = "127.0.0.1:0"\nkey_file = "compat.key"\ntensors = false\n'
    )
    directory = user.directory / "run"
    user.environment["ASTRAFLOW_TOKEN"] = "of this test"
    flow = user.start("dataflow", file, "--directory", directory)
    place = directory / "dataflow.json"
    user.wait_for(place.is_file, 60)
    user.environment["ASTRAFLOW_DATAFLOW"] = json.loads(place.read_text())["url"]
    raas = user.start("raas", file, "--directory", directory, "--name", "raas-0")
    adapter = user.start("compat", "trainer", file, door, "--directory", directory)
    address = directory / "state" / "compat-trainer.json"
    user.wait_for(address.is_file, 60)
    key = (user.directory / "compat.key").read_text().strip()
    url = json.loads(address.read_text())["url"]

    async def script() -> None:
        async with asyncio.timeout(120), aiohttp.ClientSession() as client:
            assert "key_file" in await PublicTrainer(client, url).call("/ready", {}, 401)
            await train(user, PublicTrainer(client, f"{url}/{key}"), model, 3)

    asyncio.run(script())
    assert user.end(adapter, 60).exit_code == 0
    assert user.end(raas, 60).exit_code == 0
    assert user.end(flow, 60).exit_code == 0
    status = json.loads((directory / "status.json").read_text())
    assert status["steps"] == status["steps_total"] == 3 and status["invariants_ok"]
    assert status["policies"]["solver"]["trained"] == 3 * 32
