"""A real vLLM server for the tests marked ``backend``, in an environment that they make if it is missing."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from astraflow_plugin_vllm.config import VllmConfig
from astraflow_plugin_vllm.requests import PATH
from astraflow_plugin_vllm.server import VllmServer
from astraflow_serving.http import ServerClient
from astraflow_tiny_model.folder import write_tiny_model

sys.path.insert(0, str(Path(__file__).parent))  # for vllm_stand_in

ENVIRONMENT = "tests-vllm"
CREATE_S, START_S = 1500, 580


def write_model(folder: Path, seed: int = 0, layers: int = 2, head_dim: int = 32) -> Path:
    """The suite's model, with heads of a size that vLLM's attention has kernels for; on CPU that is 32."""
    return write_tiny_model(
        folder,
        hidden=32,
        head_dim=head_dim,
        init_std=0.3,
        context=2048,
        seed=seed,
        layers=layers,
    )


@pytest.fixture(name="write_model", scope="session")
def _write_model() -> Callable[..., Path]:
    return write_model


@pytest.fixture(scope="session")
def environment() -> str:
    """The interpreter with vLLM, made as a user would make it."""
    done = subprocess.run(
        [sys.executable, "-m", "astraflow_runtime", "env", "create", ENVIRONMENT, "--plugin", "vllm",
         "--json"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=CREATE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    python: str = json.loads(done.stdout)["interpreter"]
    return python


@pytest.fixture(scope="session")
def exact_float32() -> Iterator[None]:
    """Servers that are started meanwhile multiply float32 as such on a GPU: kernels in Triton, as that of vLLM's
    attention for this dtype, would take TF32, whose log-probs are off by more than the suite allows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_F32_DEFAULT", "ieee")
        yield


async def warmed(url: str) -> None:
    """A server's first token takes long on a busy machine: it is waited for here, not in some test's deadline."""
    client = ServerClient("vLLM server", url, START_S)
    try:
        await client.post(PATH, {"token_ids": [5], "sampling_params": {"max_tokens": 1}})
    finally:
        await client.close()


def kept(child: VllmServer) -> Iterator[VllmServer]:
    """Start a server, yield it, end it. Its process belongs to a loop, and tests each have their own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(child.start(), loop).result(START_S + 10)
        asyncio.run_coroutine_threadsafe(warmed(child.url), loop).result(START_S)
        yield child
    finally:
        asyncio.run_coroutine_threadsafe(child.stop(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


@pytest.fixture(name="kept", scope="session")
def _kept() -> Callable[[VllmServer], Iterator[VllmServer]]:
    return kept


@pytest.fixture(scope="module")
def server(environment: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """A server that the tests of a module share, started by the plugin's own code."""
    folder = tmp_path_factory.mktemp("server")
    config = VllmConfig(max_batch=64, start_deadline_s=START_S)
    model = write_model(folder / "model")
    yield from kept(VllmServer(config, model, folder / "vllm.log", 0, environment, cpu=True))
