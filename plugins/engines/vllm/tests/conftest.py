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

from astraflow_core.testing.tiny_model import write_tiny_model
from astraflow_plugin_vllm.config import VllmConfig
from astraflow_plugin_vllm.server import ChildServer

ENVIRONMENT = "tests-vllm"
CREATE_S, START_S = 1500, 290


def write_model(folder: Path, seed: int = 0, layers: int = 2) -> Path:
    """The suite's model, with heads of the smallest size that vLLM's CPU attention knows."""
    return write_tiny_model(
        folder, hidden=32, head_dim=32, init_std=0.3, context=2048, seed=seed, layers=layers
    )


@pytest.fixture(name="write_model")
def _write_model() -> Callable[..., Path]:
    return write_model


@pytest.fixture(scope="session")
def environment() -> str:
    """The interpreter with vLLM, made as a user would make it."""
    done = subprocess.run(
        [sys.executable, "-m", "astraflow_core", "env", "create", ENVIRONMENT, "--plugin", "vllm",
         "--json"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=CREATE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    python: str = json.loads(done.stdout)["interpreter"]
    return python


@pytest.fixture(scope="module")
def server(environment: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChildServer]:
    """A server that the tests of a module share, started by the plugin's own code."""
    folder = tmp_path_factory.mktemp("server")
    child = ChildServer(
        VllmConfig(max_batch=64, start_deadline_s=START_S),
        write_model(folder / "model"),
        folder / "vllm.log",
        seed=0,
        python=environment,
        cpu=True,
    )
    # Its process belongs to a loop, and the tests each have their own.
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(child.start(), loop).result(START_S + 10)
        yield child
    finally:
        asyncio.run_coroutine_threadsafe(child.stop(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
