"""Two RaaS with real engine hosts, and all that may go wrong with a version on its way to them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from astraflow_core.config.models import RunConfig
from astraflow_core.types import Announcement, ComponentContext, ExportedTensor, RunInfo
from astraflow_plugin_collective import round as rounds
from astraflow_plugin_collective.config import CollectiveConfig
from astraflow_plugin_collective.publisher import CollectivePublisher
from astraflow_plugin_collective.transport import CollectiveTransport
from astraflow_runtime.raas.engines.host_process import EngineHostProcess, HostSettings
from astraflow_runtime.raas.engines.refresh import WeightRefresh
from astraflow_runtime.raas.engines.supervised_engine import SupervisedEngine
from astraflow_tiny_model.folder import write_tiny_model
from astraflow_torch_weights.group import BroadcastGroup
from astraflow_wire.host.sockets import socket_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
TOKENS = np.arange(1, 9, dtype=np.int32)
LONG_S = 120.0


class Trainer:
    """Publishes the model of seed n as version n."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.publisher: CollectivePublisher = transport(folder, "trainer").publisher()

    def publish(self, version: int) -> Announcement:
        made = write_tiny_model(self.folder / f"v{version}", seed=version, context=64, hidden=192)
        tensors = load_file(made / "model.safetensors")
        exported = [ExportedTensor(n, "F32", t.shape, t) for n, t in tensors.items()]
        manifest = self.publisher.publish(version, exported)
        return Announcement(
            "solver",
            version,
            "collective",
            self.publisher.endpoints,
            manifest.digest,
            manifest.size,
        )


def transport(folder: Path, role: str) -> CollectiveTransport:
    keys = CollectiveConfig(bucket_mb=1, window_s=LONG_S, deadline_s=20)
    info = RunInfo("test", 0, 1, 1, ("solver",), folder)
    return CollectiveTransport(
        keys, ComponentContext(info, role, "solver", 0, folder / role, "secret")
    )


def config_of(model: Path) -> RunConfig:
    policy = {
        "model": str(model),
        "trainer": {"use": "torch"},
        "algorithm": {"use": "grpo"},
        "engine": {"use": "torch", "device": "cpu", "broadcast_deadline_s": 20},
        "transport": {"use": "collective"},
        "batch_sequences": 8,
    }
    return RunConfig.model_validate(
        {
            "run": {"steps": 1, "max_staleness": 1, "group_size": 4, "start_deadline_s": 180,
                    "deadline_s": 60},
            "prompts": {"use": "jsonl"},
            "workflow": {"use": "single_turn"},
            "reward": {"use": "exact"},
            "policies": {"solver": policy},
        }
    )  # fmt: skip


class Raas:
    """An engine host under supervision, and the refresh of its weights."""

    def __init__(self, name: str, folder: Path, config: RunConfig, sockets: Path) -> None:
        own = sockets / name
        own.mkdir()
        settings = HostSettings(config, folder / name, name, "solver", "secret", own)
        self.engine = SupervisedEngine("solver", partial(EngineHostProcess.start, settings))
        self.receiver = transport(folder / name, "raas").receiver()
        self.refresh = WeightRefresh([self.engine], self.receiver, "keep", LONG_S, LONG_S)
        self.engine.changed = self.refresh.wake
        self.tasks = [asyncio.create_task(part.run()) for part in (self.engine, self.refresh)]

    async def serves(self, version: int) -> np.ndarray:
        """The scores of ``version``, once it is served."""
        async with asyncio.timeout(LONG_S):
            while self.refresh.serving != version:
                for task in self.tasks:
                    if task.done():
                        task.result()
                await asyncio.sleep(0.02)
        return await self.score()

    async def score(self) -> np.ndarray:
        assert self.engine.host is not None
        return await self.engine.host.client.score(TOKENS, 60)

    async def close(self) -> None:
        await self.engine.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.refresh.close(5)


@contextlib.asynccontextmanager
async def two(
    tmp_path: Path, config: RunConfig
) -> AsyncIterator[tuple[Trainer, tuple[Raas, Raas]]]:
    sockets = socket_folder()
    trainer = Trainer(tmp_path / "trainer")
    raas = tuple(Raas(f"raas-{n}", tmp_path, config, sockets.path) for n in range(2))
    try:
        async with asyncio.timeout(300):
            while any(each.engine.host is None for each in raas):
                await asyncio.sleep(0.05)
        yield trainer, raas  # type: ignore[misc]
    finally:
        await asyncio.gather(*(each.close() for each in raas))
        await asyncio.to_thread(trainer.publisher.close)
        sockets.close()


def expect(trainer: Trainer, raas: tuple[Raas, ...]) -> None:
    """The next window ends when these have joined."""
    found = trainer.publisher._round
    assert found is not None
    hosts = [each.engine.host for each in raas]
    found.members.clear()
    for host in hosts:
        assert host is not None
        found.members[f"{host.client.host} (pid {host.pid})"] = 1


def test_every_engine_serves_whole_versions_whatever_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(write_tiny_model(tmp_path / "model", context=64, hidden=192))
    interfere: list[Callable[[int], bool]] = []
    real = rounds.send

    def send(group: BroadcastGroup, data: memoryview, backend: str) -> None:
        held = bytearray(data)
        if interfere and interfere[0](len(sent)):
            held[len(held) // 2] ^= 4
        sent.append(len(held))
        real(group, memoryview(held), backend)

    sent: list[int] = []
    monkeypatch.setattr(rounds, "send", send)

    async def scenario() -> None:
        async with two(tmp_path, config) as (trainer, raas):

            async def publish(version: int, *, to: tuple[Raas, ...] = raas) -> Announcement:
                sent.clear()
                told = await asyncio.to_thread(trainer.publish, version)
                for each in to:
                    each.refresh.on_announced(told)
                return told

            def received() -> list[int]:
                return [each.refresh.times.bytes_received for each in raas]

            # A version without an announcement, so that the expected members are known.
            await asyncio.to_thread(trainer.publish, 1)
            expect(trainer, raas)
            await publish(2)
            scores = [await each.serves(2) for each in raas]
            assert (scores[0] == scores[1]).all() and len(sent) > 1
            assert received() == [0, 0], "no file was needed"

            interfere.append(lambda number: number == 1)  # a flipped bit in the second bucket
            expect(trainer, raas)
            told = await publish(3)
            flipped = [await each.serves(3) for each in raas]
            assert (flipped[0] == flipped[1]).all() and (flipped[0] != scores[0]).any()
            assert received() == [told.size] * 2, "both fetched the file instead"
            interfere.clear()

            victim, survivor = raas
            before = await survivor.score()
            pid = victim.engine.host.pid  # type: ignore[union-attr]
            killed, looked = threading.Event(), threading.Event()

            def kill(number: int) -> bool:
                if number == 1:
                    os.kill(pid, signal.SIGKILL)
                    killed.set()
                    looked.wait(60)
                return False

            interfere.append(kill)
            expect(trainer, raas)
            await publish(4)
            assert await asyncio.to_thread(killed.wait, LONG_S)
            assert survivor.refresh.serving == 3 and (await survivor.score() == before).all()
            looked.set()
            fourth = [await each.serves(4) for each in raas]  # the victim was started again
            assert (fourth[0] == fourth[1]).all() and (fourth[0] != before).any()
            interfere.clear()

            expect(trainer, (survivor,))
            told = await publish(5, to=(survivor,))
            await survivor.serves(5)
            files = victim.refresh.times.bytes_received
            victim.refresh.on_announced(told)  # late
            fifth = [await each.serves(5) for each in raas]
            assert (fifth[0] == fifth[1]).all()
            assert victim.refresh.times.bytes_received == files + told.size

    asyncio.run(scenario())
