"""Foreign RaaS, in threads or in a process of their own, work for a scripted dataflow through the whole adapter."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import foreign_raas
import numpy as np
import pytest
from safetensors.numpy import save_file
from scripted_dataflow import ScriptedDataflow

from astraflow_contrib_compat import serving
from astraflow_contrib_compat.config import CompatConfig
from astraflow_contrib_compat.door import ForeignPool, RegisterForeign, compat_app
from astraflow_contrib_compat.raas.session import ForeignRun
from astraflow_core.errors import DeadlineExceeded
from astraflow_core.types import Announcement, WeightSource
from astraflow_tiny_model.folder import write_tiny_model
from astraflow_wire import messages
from astraflow_wire.http.auth import bearer
from astraflow_wire.http.server import Server

HERE = Path(__file__).parent
KEY = "the-key"
WORKFLOW = {"workflow_cls": "digits", "reward_fn": "positions"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_tiny_model(folder, hidden=8, layers=1, heads=1, kv_heads=1)
    return folder


class FileReceiver:
    """Fetches versions from a folder; ``held`` are the versions that are not released."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.held = folder, set[int]()

    def fetch(self, announcement: Announcement, deadline_s: float) -> WeightSource:
        self.held.add(announcement.version)
        path = self.folder / f"{announcement.version}.safetensors"
        return WeightSource("solver", announcement.version, path, announcement.digest, 0, 0.0)

    def release(self, source: WeightSource) -> None:
        self.held.discard(source.version)

    def close(self) -> None:
        self.held.clear()


class Setting:
    """An adapter between a scripted dataflow and foreign RaaS."""

    def __init__(self, folder: Path, model: Path, **keys: Any) -> None:
        self.model, self.folder = model, folder
        self.flow, self.receiver = ScriptedDataflow(), FileReceiver(folder)
        keys = {"poll_s": 0.02, "heartbeat_s": 5.0, "call_s": 10.0, "weights_s": 20.0, **keys}
        self.config = CompatConfig(key_file=folder / "key", workflow=WORKFLOW, **keys)
        vocabulary = json.loads((model / "tokenizer.json").read_text())["model"]["vocab"]
        self.logits = np.random.default_rng(0).normal(0, 1, (4, len(vocabulary))).astype(np.float32)

    def announce(self, version: int) -> None:
        """Publish a version: it differs from the others in one number."""
        self.logits[0, version] += 1
        save_file({"logits": self.logits}, self.folder / f"{version}.safetensors")
        told = messages.AnnouncementMessage(
            policy="solver", version=version, transport="files", endpoints=["x"], digest=f"d{version}", size=1
        )  # fmt: skip
        self.flow.notices["announcements"] = [told]

    def foreign(self, fault: str = "", delta: bool = True) -> foreign_raas.ThreadingHTTPServer:
        """A foreign RaaS that answers in threads of this process."""
        server = foreign_raas.serve(self.model, fault, delta)
        server.service.leave = lambda code: server.shutdown()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    async def join(self, server: foreign_raas.ThreadingHTTPServer, uid: str = "foreign") -> None:
        url = f"http://127.0.0.1:{server.server_port}"
        await self.pool.register(RegisterForeign(uid=uid, raas_url=url))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Setting]:
        async with Server(self.flow.app, "127.0.0.1", 0) as flow:
            run = ForeignRun(
                self.config, {"solver": "model0"}, 4, 10.0, flow.url, "run", 1 << 20,
                lambda policy, name: self.receiver, "127.0.0.1", "127.0.0.1",
            )  # fmt: skip
            self.pool = ForeignPool(run)
            async with Server(compat_app(self.pool, KEY), "127.0.0.1", 0) as door:
                self.url = door.url
                try:
                    yield self
                finally:
                    await self.pool.close()


def task(number: int, **more: Any) -> messages.Task:
    return messages.Task(
        id=f"t{number}", prompt_id=f"p{number}", data={"prompt": "12", "answer": "12"}, group_size=4,
        sampling=messages.SamplingMessage(max_tokens=3), lease_s=10, deadline_s=more.pop("deadline_s", 20), **more,
    )  # fmt: skip


@pytest.fixture
def setting(tmp_path: Path, model: Path) -> Callable[..., Setting]:
    return lambda **keys: Setting(tmp_path, model, **keys)


def play(setting: Setting, script: Callable[[Setting], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(60), setting.running():
            await script(setting)

    asyncio.run(whole())


def test_groups_of_a_foreign_raas_are_pushed(setting: Callable[..., Setting]) -> None:
    async def script(it: Setting) -> None:
        it.announce(0)
        it.flow.tasks = [task(0), task(1)]
        server = it.foreign()
        async with aiohttp.ClientSession() as client:
            told = {
                "uid": "foreign",
                "raas_url": f"http://127.0.0.1:{server.server_port}",
                "gpu_count": 2,
            }
            async with client.post(f"{it.url}/{KEY}/register_raas", json=told) as answer:
                assert await answer.json() == {"ok": True, "uid": "foreign", "pool_size": 1}
            await it.flow.until(lambda: len(it.flow.groups) == 2)
            async with client.get(f"{it.url}/raas_pool", headers=bearer(KEY)) as answer:
                (instance,) = (await answer.json())["instances"]
        assert instance["initialized"] and instance["gpu_count"] == 2 and not instance["problem"]
        assert it.flow.capacity == 8 * 4
        for group in it.flow.groups:
            assert group.header.trajectories == 4 and group.header.raas == "foreign"
            trained = group.loss_mask == 1
            assert set(group.versions[trained]) == {0} and set(group.versions[~trained]) == {-1}
            assert (group.logprobs[trained] < 0).all() and not group.logprobs[~trained].any()
        logits = it.logits.astype(np.float64)
        expected = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        first = it.flow.groups[0].offsets[0] + 2
        token = it.flow.groups[0].tokens[first]
        assert it.flow.groups[0].logprobs[first] == pytest.approx(expected[0, token], abs=1e-5)
        it.flow.notices["stop"] = True
        await asyncio.wait_for(it.pool.ended.wait(), 20)
        assert "/shutdown" in server.service.calls and it.flow.left[0].reason == "the run has ended"

    play(setting(), script)


def test_later_versions_come_as_deltas(setting: Callable[..., Setting]) -> None:
    async def script(it: Setting) -> None:
        it.announce(0)
        server = it.foreign()
        await it.join(server)
        for version in range(3):
            await it.flow.until(lambda version=version: it.flow.serving == {"solver": version})
            assert np.array_equal(server.service.logits, it.logits)
            it.announce(version + 1)
        assert server.service.receiver.modes[:3] == ["full", "delta", "delta"]

    play(setting(), script)


WRONG = {
    "bomb": "posix.system is not on the list",
    "shape": "must have one length",
    "version": "tokens of version 999, which was not delivered",
    "fails": "out of ideas",
}


def test_wrong_results_fail_their_tasks_alone(setting: Callable[..., Setting]) -> None:
    """The dataflow gets the reason, also of a group that it rejects, and the next task succeeds."""

    async def script(it: Setting) -> None:
        it.announce(0)
        server = it.foreign()
        await it.join(server)
        for fault, reason in WRONG.items():
            server.service.fault, it.flow.tasks, it.flow.failed = fault, [task(0)], {}
            await it.flow.until(lambda: "t0" in it.flow.failed)
            assert reason in it.flow.failed["t0"].error and not it.flow.failed["t0"].fatal
        server.service.fault, it.flow.refuses, it.flow.failed = (
            "",
            "logprobs has 0.5 at token 3",
            {},
        )
        it.flow.tasks = [task(0)]
        await it.flow.until(lambda: "t0" in it.flow.failed)
        assert "its group was rejected: logprobs has 0.5" in it.flow.failed["t0"].error
        server.service.fault, it.flow.refuses, it.flow.tasks = "rejects", "", [task(1)]
        await it.flow.until(lambda: len(it.flow.groups) == 1)
        header = it.flow.groups[0].header
        assert header.rejected == 4 and header.trajectories == 0
        server.service.fault, it.flow.tasks = "", [task(2)]
        await it.flow.until(lambda: len(it.flow.groups) == 2)
        assert it.flow.groups[1].header.trajectories == 4
        assert not it.flow.left and not Path("bomb-went-off").exists()

    play(setting(), script)


def test_one_submission_for_each_episode(setting: Callable[..., Setting]) -> None:
    async def script(it: Setting) -> None:
        it.announce(0)
        it.flow.tasks = [task(0)]
        server = it.foreign()
        await it.join(server)
        await it.flow.until(lambda: len(it.flow.groups) == 1)
        assert server.service.calls.count("/submit") == 4
        assert it.flow.capacity == 8 and it.flow.groups[0].header.trajectories == 4

    play(setting(submission="episode"), script)


def test_a_task_that_does_not_end_and_a_lease_that_is_lost(setting: Callable[..., Setting]) -> None:
    async def script(it: Setting) -> None:
        it.announce(0)
        it.flow.tasks = [task(0, deadline_s=0.2), task(1)]
        await it.join(it.foreign("silent"))
        await it.flow.until(lambda: "t0" in it.flow.failed)
        assert "missed its deadline of 0.2 s" in it.flow.failed["t0"].error
        await it.flow.until(lambda: it.flow.renewed == ["t1"])
        it.flow.notices["revoked"] = [messages.RevokedLease(task="t1", reason="another was faster")]
        await it.flow.until(lambda: it.flow.renewed == [])
        assert "t1" not in it.flow.failed

    play(setting(), script)


@pytest.mark.slow
def test_a_raas_that_disappears_returns_its_leases(setting: Callable[..., Setting]) -> None:
    """A separate process that is killed during a submission. Another RaaS continues meanwhile."""

    async def script(it: Setting) -> None:
        it.announce(0)
        other = it.foreign()
        await it.join(other, "other")
        await it.flow.until(lambda: it.flow.serving == {"solver": 0})
        command = [
            sys.executable,
            str(HERE / "foreign_raas.py"),
            str(it.model),
            f"{it.url}/{KEY}",
            "brief",
            "silent",
        ]
        it.flow.only, it.flow.tasks = "brief", [task(0), task(1)]
        process = await asyncio.to_thread(subprocess.Popen, command)
        try:
            await it.flow.until(lambda: "brief" in it.flow.names)
        finally:
            process.kill()
            process.wait()
        await it.flow.until(lambda: bool(it.flow.left))
        assert it.flow.left[0].raas == "brief" and "heartbeats" in it.flow.left[0].reason
        it.flow.only, it.flow.tasks = "", [task(9)]
        await it.flow.until(lambda: [group.header.task for group in it.flow.groups] == ["t9"])

    play(setting(heartbeat_s=0.3), script)


def test_a_raas_that_claims_weights_which_it_never_fetched(
    setting: Callable[..., Setting],
) -> None:
    async def script(it: Setting) -> None:
        it.announce(0)
        it.flow.tasks = [task(0)]
        await it.join(it.foreign("lies"))
        await it.flow.until(lambda: any(each["problem"] for each in it.pool.instances()))
        (instance,) = it.pool.instances()
        assert "says that it has version 1, but it asked for no transfer" in instance["problem"]
        assert it.flow.serving == {} and it.flow.tasks and not it.receiver.held

    play(setting(), script)


def test_an_evaluation_is_rolled_out_with_its_pinned_version(
    setting: Callable[..., Setting],
) -> None:
    """An older version is delivered under a new number, and the newest again afterwards."""

    async def script(it: Setting) -> None:
        it.announce(0)
        server = it.foreign(delta=False)
        await it.join(server)
        await it.flow.until(lambda: it.flow.serving == {"solver": 0})
        it.announce(1)
        await it.flow.until(lambda: it.flow.serving == {"solver": 1})
        it.flow.notices["pins"] = {"solver": 0}
        it.flow.tasks = [task(0, eval_set="held_out", pinned={"solver": 0})]
        await it.flow.until(lambda: len(it.flow.groups) == 1)
        (group,) = it.flow.groups
        assert group.header.eval_set == "held_out" and set(
            group.versions[group.loss_mask == 1]
        ) == {0}
        it.flow.notices["pins"] = {}
        it.flow.tasks = [task(1)]
        await it.flow.until(lambda: it.flow.serving == {"solver": 1})
        calls = [call for call in server.service.calls if "eval_" in call or "reset" in call]
        calls = [call for call in calls if "pull" not in call]
        assert calls == ["/reset_training_engine", "/eval_start", "/eval_submit", "/eval_end"]
        assert server.service.version == 4

    play(setting(), script)


@pytest.mark.slow
def test_weights_of_a_lost_journal_are_discarded(setting: Callable[..., Setting]) -> None:
    async def script(it: Setting) -> None:
        it.announce(0)
        it.announce(1)
        await it.join(it.foreign())
        await it.flow.until(lambda: it.flow.serving == {"solver": 1})
        it.announce(0)
        it.flow.notices["discard"] = {"solver": "d1"}
        await it.flow.until(lambda: it.flow.serving == {})
        del it.flow.notices["discard"]
        await it.flow.until(lambda: it.flow.serving == {"solver": 0})

    play(setting(), script)


REGISTRATIONS: list[tuple[Any, str]] = [
    ({"uid": "a", "raas_url": "file:///etc/passwd"}, "expected http://HOST:PORT"),
    ({"uid": "../a", "raas_url": "http://127.0.0.1:1"}, "uid '../a'"),
    ({"uid": "a"}, "raas_url: Field required"),
    ({"uid": "a", "raas_url": "http://127.0.0.1:1", "gpu_count": -1}, "gpu_count"),
    ([], "the body"),
]


def test_the_door_needs_its_key_and_a_sound_body(setting: Callable[..., Setting]) -> None:
    async def script(it: Setting) -> None:
        async with aiohttp.ClientSession() as client:

            async def refused(path: str, body: Any, status: int, **more: Any) -> str:
                async with client.post(f"{it.url}{path}", json=body, **more) as answer:
                    assert answer.status == status
                    return str((await answer.json())["error"])

            sound = REGISTRATIONS[1][0]
            assert "key_file" in await refused("/register_raas", sound, 401)
            assert "key_file" in await refused("/register_raas", sound, 401, headers=bearer("x"))
            assert "key_file" in await refused("/the-wrong-key/register_raas", sound, 401)
            for body, reason in REGISTRATIONS:
                assert reason in await refused(f"/{KEY}/register_raas", body, 400)
            assert "no RaaS 'x'" in await refused(f"/{KEY}/deregister_raas", {"uid": "x"}, 400)
            assert "Not Found" in await refused(f"/{KEY}/shutdown", {}, 404)
            await refused(f"/{KEY}/register_raas", {"uid": "a" * 100_000}, 413)
        assert not len(it.pool)

    play(setting(), script)


@pytest.mark.slow
def test_one_that_registers_again_replaces_itself(setting: Callable[..., Setting]) -> None:
    async def script(it: Setting) -> None:
        it.announce(0)
        await it.join(it.foreign())
        await it.flow.until(lambda: it.flow.serving == {"solver": 0})
        await it.join(it.foreign())
        assert it.flow.left[0].reason == "it has registered again"
        it.flow.tasks = [task(0)]
        await it.flow.until(lambda: len(it.flow.groups) == 1)
        assert await it.pool.deregister("foreign", "asked") and not len(it.pool)

    play(setting(), script)


def test_without_a_raas_it_ends_when_the_dataflow_is_gone(
    setting: Callable[..., Setting], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "LOOK_S", 0.01)

    async def script(it: Setting) -> None:
        gone = ForeignRun(
            it.config, {"solver": "model0"}, 4, 0.1, "http://127.0.0.1:9", "run", 1,
            lambda policy, name: it.receiver, "127.0.0.1", "127.0.0.1",
        )  # fmt: skip
        with pytest.raises(DeadlineExceeded, match=r"127\.0\.0\.1:9"):
            await serving.until_gone(gone, it.pool)

    play(setting(), script)
