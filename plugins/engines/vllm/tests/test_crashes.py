"""What becomes of an engine whose server process fails: not a real one, but ``fake_vllm.py``, since the real one
cannot be made to fail at a wanted place."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astraflow_core.errors import EngineLost, PreflightError, RunFailed
from astraflow_core.types import GenerateRequest, Sampling, WeightSource
from astraflow_plugin_vllm.config import VllmConfig
from astraflow_plugin_vllm.engine import VllmEngine
from astraflow_plugin_vllm.server import VllmServer
from astraflow_testing.conformance.subject import context

pytestmark = pytest.mark.timeout(60)
FAKE = Path(__file__).with_name("fake_vllm.py")
Scenario = Callable[[VllmEngine, Path], Coroutine[Any, Any, None]]


@pytest.fixture
def run(
    tmp_path: Path, write_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., None]:
    """``run(how, scenario, **keys)`` with an engine on a server that fails so."""
    model = write_model(tmp_path / "model")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} "$@"\n')
    python.chmod(0o755)

    def go(how: str, scenario: Scenario, **keys: Any) -> None:
        monkeypatch.setenv("FAKE_VLLM", how)

        async def main() -> None:
            config = VllmConfig(**keys)
            server = VllmServer(config, model, tmp_path / "vllm.log", 0, str(python), cpu=True)
            engine = VllmEngine(config, context("engine", tmp_path), server)
            await engine.start(model)
            try:
                await scenario(engine, model)
            finally:
                await engine.close()

        asyncio.run(main())

    return go


def request(name: str = "r") -> GenerateRequest:
    return GenerateRequest(name, np.array([5, 9], dtype=np.int32), Sampling(3))


async def unreached(engine: VllmEngine, model: Path) -> None:
    raise AssertionError("it started")


def test_a_server_that_drafts_is_refused(run: Callable[..., None]) -> None:
    with pytest.raises(PreflightError, match=r"started with drafts: .*leave them out"):
        run("drafts", unreached)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("out-of-memory", r"(?s)exit code 1: memory is short: lower cache_gb.*Tried to allocate"),
        ("killed", r"was killed by SIGKILL \(out of memory\?\)"),
    ],
)
def test_a_server_that_dies_of_a_request_ends_the_engine_with_its_last_words(
    run: Callable[..., None], how: str, said: str
) -> None:
    async def scenario(engine: VllmEngine, model: Path) -> None:
        with pytest.raises(EngineLost, match=said):
            await engine.generate(request())
        with pytest.raises(EngineLost, match=said):
            await engine.health()

    run(how, scenario)


def test_a_server_that_dies_in_an_update_ends_the_engine_and_what_waits(
    run: Callable[..., None],
) -> None:
    async def scenario(engine: VllmEngine, model: Path) -> None:
        await engine.pause("keep")
        waits = asyncio.ensure_future(engine.generate(request()))
        await asyncio.sleep(0)
        source = WeightSource("p", 1, model / "model.safetensors", "", 0, 0.0)
        said = r"(?s)what vLLM holds after version 1.*a worker of the fake ended"
        with pytest.raises(EngineLost, match=said):
            await engine.load_weights(source)
        with pytest.raises(EngineLost, match=said):
            await waits

    run("crash-mid-update", scenario)


def test_a_server_that_hangs_is_killed(run: Callable[..., None]) -> None:
    async def scenario(engine: VllmEngine, model: Path) -> None:
        with pytest.raises(EngineLost, match=r"sampled nothing for .* s with 1 requests"):
            await engine.generate(request())
        with pytest.raises(EngineLost):
            await engine.resume()

    run("hang", scenario, stall_deadline_s=0.3)


def test_a_port_that_is_taken_is_named_as_the_cause(run: Callable[..., None]) -> None:
    with pytest.raises(RunFailed, match=r"a port of its workers is in use.*VLLM_PORT"):
        run("port-taken", unreached)
