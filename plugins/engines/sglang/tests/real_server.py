"""What the engine suites on real SGLang servers share."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from astraflow_plugin_sglang.config import SGLangConfig
from astraflow_plugin_sglang.server import sglang_server
from astraflow_serving.child_server import ChildServer
from astraflow_testing.conformance.engine import Subject, installed
from astraflow_tiny_model.folder import write_tiny_model

START_S = 1200.0
BY_HAND = [
    pytest.mark.timeout(2000),
    pytest.mark.skipif(
        not {"SGLANG_SOURCES", "SGLANG_CPU_PYTHON"} <= os.environ.keys(),
        reason="SGLANG_SOURCES and SGLANG_CPU_PYTHON name no SGLang for CPUs",
    ),
]
ON_CPU = (
    *("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
    *("--max-total-tokens", "8192", "--sleep-on-idle"),
)


@contextmanager
def running(child: ChildServer) -> Iterator[str]:
    """The URL of a server, whose process belongs to a loop of its own: each test has another one."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(child.start(), loop).result(START_S + 10)
        yield child.url
    finally:
        asyncio.run_coroutine_threadsafe(child.stop(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


@contextmanager
def running_on_cpu(model: Path, **keys: Any) -> Iterator[str]:
    """The URL of a server on ``model`` whose kernels are PyTorch's (``kernels_for_cpu``), started for an engine with ``keys``."""
    config = SGLangConfig(
        server_python=os.environ["SGLANG_CPU_PYTHON"],
        dtype="float32",
        arguments=ON_CPU,
        start_deadline_s=START_S,
        **keys,
    )
    kernels = Path(__file__).with_name("kernels_for_cpu")
    found = filter(
        None, [*map(str, (kernels, os.environ["SGLANG_SOURCES"])), os.environ.get("PYTHONPATH")]
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SGLANG_USE_CPU_ENGINE", "1")
        patch.setenv("PYTHONPATH", os.pathsep.join(found))
        child = sglang_server(config, model, model.with_name("sglang.log"), 0)
    with running(child) as url:
        yield url


class OnRealServer:
    """The engine at the fixture ``server`` with ``keys``; ``shape`` is of its models."""

    keys: ClassVar[dict[str, Any]] = {}
    shape: ClassVar[dict[str, Any]]
    deadline_s = 120.0

    @classmethod
    def write_model(cls, folder: Path, seed: int = 0) -> Path:
        return write_tiny_model(folder, **cls.shape, init_std=0.3, context=2048, seed=seed)

    @pytest.fixture
    def component(self, server: str) -> Subject:
        found = installed("engine", "sglang", {"url": server, **self.keys})
        # The model of this server reads no images (`test_real_server_images_on_cpu.py`).
        return replace(found, capabilities=found.capabilities - {"images"})

    @pytest.fixture
    def model(self, tmp_path: Path) -> Path:
        return self.write_model(tmp_path / "model")

    @pytest.fixture
    def other(self, tmp_path: Path) -> Path:
        return self.write_model(tmp_path / "other", seed=1) / "model.safetensors"
