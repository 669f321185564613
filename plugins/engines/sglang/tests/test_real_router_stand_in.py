"""The real sglang-router in front of stand-ins for two servers, which say nothing about SGLang itself."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astraflow_core.errors import AstraFlowError
from astraflow_core.types import GenerateRequest, GenerateResult, Sampling, WeightSource
from astraflow_plugin_sglang.config import SGLangConfig
from astraflow_plugin_sglang.engine import SGLangEngine
from astraflow_testing.conformance.subject import context

pytestmark = [pytest.mark.backend, pytest.mark.timeout(240)]
START_S, SCENARIO_S = 90.0, 120.0
SHORT, LONG = Sampling(8), Sampling(400, ignore_eos=True)
Scenario = Callable[[list[SGLangEngine]], Coroutine[Any, Any, None]]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/readiness", timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


@pytest.fixture
def router(servers: list[Any], tmp_path: Path) -> Iterator[str]:
    """Its URL, once it has found both servers to be well."""
    port, log = free_port(), tmp_path / "router.log"
    url = f"http://127.0.0.1:{port}"
    command = [
        sys.executable, "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(port),
        "--prometheus-port", str(free_port()), "--policy", "round_robin",
        "--worker-urls", *(server.url for server in servers),
    ]  # fmt: skip
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    try:
        give_up = time.monotonic() + START_S
        while not is_ready(url):
            assert process.poll() is None and time.monotonic() < give_up, log.read_text()
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(20)
        finally:
            process.kill()
            process.wait()


def run(servers: list[Any], router: str, model: Path, scenario: Scenario) -> None:
    """``scenario`` with the engines of two replicas."""
    config = SGLangConfig(url=tuple(server.url for server in servers), router=router)

    async def main() -> None:
        engines = [
            SGLangEngine(config, replace(context("engine", model.parent), replica=n, replicas=2))
            for n in range(2)
        ]
        async with asyncio.timeout(SCENARIO_S):
            try:
                for engine in engines:
                    await engine.start(model)
                await scenario(engines)
            finally:
                for engine in engines:
                    await engine.close()

    asyncio.run(main())


def request(name: str, sampling: Sampling = SHORT, **more: Any) -> GenerateRequest:
    return GenerateRequest(name, np.array((5, 9, 3), np.int32), sampling, **more)


def test_requests_are_spread_and_control_reaches_every_replica(
    servers: list[Any], router: str, model: Path
) -> None:
    async def scenario(engines: list[SGLangEngine]) -> None:
        results = [await engines[0].generate(request(f"r{n}")) for n in range(4)]
        assert [len(server.bodies("/generate")) for server in servers] == [2, 2]
        for result in results:
            assert len(result.tokens) == len(result.logprobs) > 0
            assert set(result.versions.tolist()) == {0}
        version = WeightSource("solver", 7, model / "model.safetensors", "", 0, 0.0)
        for engine in engines[1:]:
            await engine.pause("keep")
            await engine.load_weights(version)
            await engine.resume()
        mixed = [await engines[0].generate(request(f"m{n}")) for n in range(4)]
        assert sorted(int(result.versions[0]) for result in mixed) == [0, 0, 7, 7]
        await engines[0].pause("keep")
        await engines[0].load_weights(version)
        await engines[0].resume()
        after = [await engine.generate(request(f"a{n}")) for n in range(2) for engine in engines]
        assert {int(v) for result in after for v in result.versions} == {7}
        pinned = await engines[1].generate(request("p", pinned_version=7))
        assert set(pinned.versions.tolist()) == {7}

    run(servers, router, model, scenario)


def test_the_death_of_a_replica_costs_the_requests_that_it_ran(
    servers: list[Any], router: str, model: Path
) -> None:
    async def until(condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(0.002)

    async def scenario(engines: list[SGLangEngine]) -> None:
        for server in servers:
            server.scheduler.delay_s = 0.01  # long enough for both to be under way
        sent = [
            asyncio.ensure_future(engines[0].generate(request(f"r{n}", LONG))) for n in range(2)
        ]
        await until(lambda: all(server.running for server in servers))
        await asyncio.to_thread(servers[1].stop)
        servers[0].scheduler.delay_s = 0.0005
        ended = await asyncio.gather(*sent, return_exceptions=True)
        lost = [end for end in ended if isinstance(end, BaseException)]
        assert len(lost) == 1 and isinstance(lost[0], AstraFlowError), ended
        assert "/generate" in str(lost[0]) and router in str(lost[0])
        (whole,) = [end for end in ended if isinstance(end, GenerateResult)]
        assert len(whole.tokens) == LONG.max_tokens
        for number in range(4):
            result = await engines[0].generate(request(f"q{number}"))
            assert set(result.versions.tolist()) == {0}
        with pytest.raises(AstraFlowError):
            await engines[1].generate(request("p", pinned_version=0))

    run(servers, router, model, scenario)
