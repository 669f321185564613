"""The engine suite on a real SGLang server: the only proof that the stand-in stands for it. Needs a GPU and
SGLang, in this interpreter or in the one that the variable SGLANG_PYTHON names."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from astraflow_core.testing.conformance.engine import EngineConformance, Subject, installed
from astraflow_core.testing.tiny_model import write_tiny_model

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(2000)]
START_S = 600


def write_model(folder: Path, seed: int = 0) -> Path:
    """The suite's model, with heads of a size that SGLang's attention kernels have."""
    return write_tiny_model(
        folder, hidden=64, head_dim=64, init_std=0.3, context=2048, seed=seed
    )  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("sglang")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    python = os.environ.get("SGLANG_PYTHON", sys.executable)
    command = [
        *(python, "-m", "sglang.launch_server", "--model-path", str(write_model(folder / "model"))),
        *("--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"),
        *("--attention-backend", "triton", "--sampling-backend", "pytorch"),  # these know float32
        *("--skip-tokenizer-init", "--disable-radix-cache", "--mem-fraction-static", "0.3"),
    ]
    log = folder / "sglang.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        give_up = time.monotonic() + START_S
        while True:
            try:
                with urllib.request.urlopen(f"{url}/health", timeout=5):
                    break
            except (OSError, urllib.error.URLError):
                told = log.read_text(errors="replace")[-3000:]
                assert process.poll() is None, f"the server ended: {told}"
                assert time.monotonic() < give_up, f"the server is not ready: {told}"
                time.sleep(1)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


class TestSGLangOnGpu(EngineConformance):
    deadline_s = 120.0

    @pytest.fixture
    def component(self, server: str) -> Subject:
        return installed("engine", "sglang", {"url": server})

    @pytest.fixture
    def model(self, tmp_path: Path) -> Path:
        return write_model(tmp_path / "model")

    @pytest.fixture
    def other(self, tmp_path: Path) -> Path:
        return write_model(tmp_path / "other", seed=1) / "model.safetensors"
