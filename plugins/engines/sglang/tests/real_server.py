"""What the engine suites on real SGLang servers share."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from astraflow_serving.child_server import ChildServer
from astraflow_testing.conformance.engine import Subject, installed
from astraflow_tiny_model.folder import write_tiny_model

START_S = 600.0


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
        return installed("engine", "sglang", {"url": server, **self.keys})

    @pytest.fixture
    def model(self, tmp_path: Path) -> Path:
        return self.write_model(tmp_path / "model")

    @pytest.fixture
    def other(self, tmp_path: Path) -> Path:
        return self.write_model(tmp_path / "other", seed=1) / "model.safetensors"
