"""How a server is started as a child and what its end is called. Its process is a stand-in for SGLang's: that of
``conftest``, or a script that fails as a server might."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astraflow_core.errors import DeadlineExceeded, EngineLost, PreflightError, RunFailed
from astraflow_core.types import GenerateRequest, Sampling
from astraflow_plugin_sglang.config import SGLangConfig
from astraflow_plugin_sglang.engine import SGLangEngine
from astraflow_plugin_sglang.server import sglang_server
from astraflow_testing.conformance.subject import context

pytestmark = pytest.mark.timeout(120)
STAND_IN = Path(__file__).with_name("sglang_stand_in.py")
Scenario = Callable[[SGLangEngine], Coroutine[Any, Any, None]]


@pytest.fixture
def run(tmp_path: Path, model: Path) -> Callable[..., None]:
    """``run(script, scenario, **keys)`` with an engine whose server's interpreter runs ``script``."""

    def go(script: Path, scenario: Scenario, **keys: Any) -> None:
        python = tmp_path / "python"
        # Called as `python -m sglang.launch_server …`
        python.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} {script} "$@"\n')
        python.chmod(0o755)
        config = SGLangConfig(server_python=str(python), **keys)

        async def main() -> None:
            engine = SGLangEngine(config, context("engine", tmp_path))
            await engine.start(model)
            try:
                await scenario(engine)
            finally:
                await engine.close()

        asyncio.run(main())

    return go


async def unreached(engine: SGLangEngine) -> None:
    raise AssertionError("it started")


def request(tokens: int) -> GenerateRequest:
    prompt = np.array((5, 9, 3), np.int32)
    return GenerateRequest("r", prompt, Sampling(tokens, ignore_eos=True))


def test_a_child_serves_and_its_death_ends_the_engine_with_its_last_words(
    run: Callable[..., None], tmp_path: Path
) -> None:
    async def scenario(engine: SGLangEngine) -> None:
        result = await engine.generate(request(5))
        assert result.versions.tolist() == [0] * 5
        sent = asyncio.ensure_future(engine.generate(request(400)))
        while (await engine.health())["tokens_generated"] < 8:
            await asyncio.sleep(0.002)
        server: Any = engine._running.server
        os.killpg(server.pid, signal.SIGKILL)
        said = r"(?s)was killed by SIGKILL \(out of memory\?\).*the stand-in is ready"
        with pytest.raises(EngineLost, match=said):
            await sent

    run(STAND_IN, scenario)


@pytest.mark.parametrize(
    ("said", "meaning"),
    [
        ("ModuleNotFoundError: No module named 'sglang'", "server_python"),
        ("ModuleNotFoundError: No module named 'sgl_kernel'", "wheels for CUDA only"),
        ("RuntimeError: No CUDA GPUs are available", "nvidia-smi"),
        ("torch.OutOfMemoryError: CUDA out of memory.", "lower memory_fraction"),
        ("[Errno 98] Address already in use", "remove the key port"),
        ("a cause that nobody knows", "its last lines"),
    ],
)
def test_one_that_does_not_start_is_quoted_and_explained(
    run: Callable[..., None], tmp_path: Path, said: str, meaning: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"import sys; sys.stderr.write({said!r} + chr(10)); sys.exit(3)")
    with pytest.raises(RunFailed) as caught:
        run(script, unreached)
    for part in ("ended with exit code 3 before it was ready", said, meaning):
        assert part in str(caught.value)


def test_one_that_takes_too_long_is_killed(run: Callable[..., None], tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import time; time.sleep(60)")
    with pytest.raises(DeadlineExceeded, match="its start; its last lines"):
        run(script, unreached, start_deadline_s=0.5)


def test_an_interpreter_that_is_not_there_is_named(tmp_path: Path, model: Path) -> None:
    config = SGLangConfig(server_python=str(tmp_path / "nowhere" / "python"))
    engine = SGLangEngine(config, context("engine", tmp_path))
    with pytest.raises(RunFailed, match=r"name its python in the key server_python"):
        asyncio.run(engine.start(model))


def test_a_port_that_is_taken_is_refused_before_anything_starts(
    run: Callable[..., None], tmp_path: Path
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(PreflightError, match=f"port {port} is already in use"):
            run(tmp_path / "never", unreached, port=port)


def test_the_command_says_what_the_keys_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_RETURN_ORIGINAL_LOGPROB", "1")
    config = SGLangConfig(
        server_python="/envs/sglang/bin/python",
        dtype="bfloat16",
        tensor_parallel=2,
        memory_fraction=0.5,
        context_length=64,
        max_batch=3,
        arguments=("--attention-backend", "triton"),
    )
    server = sglang_server(config, tmp_path, tmp_path / "log", 7)
    line = " ".join(server.command)
    assert line.startswith(
        f"/envs/sglang/bin/python -m sglang.launch_server --model-path {tmp_path}"
    )
    for part in (
        "--host 127.0.0.1", "--port", "--skip-tokenizer-init", "--random-seed 7", "--dtype bfloat16",
        "--tp-size 2", "--max-running-requests 3", "--disable-radix-cache", "--disable-overlap-schedule",
        "--context-length 64",
        "--mem-fraction-static 0.5",
    ):  # fmt: skip
        assert part in line
    assert line.endswith("--attention-backend triton")
    kept = sglang_server(SGLangConfig(keep="retract"), tmp_path, tmp_path / "log", 7)
    assert "--skip-tokenizer-init" in kept.command
    assert not {"--disable-radix-cache", "--disable-overlap-schedule"} & set(kept.command)
    assert kept.environment["SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"] == "0"
    assert "SGLANG_RETURN_ORIGINAL_LOGPROB" not in kept.environment
