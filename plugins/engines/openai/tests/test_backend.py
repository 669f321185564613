"""Real servers: vLLM (its CPU build) by token ids, `transformers serve` by text."""

from __future__ import annotations

import asyncio
import json
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
from typing import Any, ClassVar

import numpy as np
import pytest

from astraflow_core.errors import WeightsError
from astraflow_core.types import GenerateRequest, Sampling, WeightSource
from astraflow_testing.conformance import subject
from astraflow_testing.conformance.engine import EngineConformance, Subject, installed
from astraflow_tiny_model.folder import write_tiny_model

pytestmark = [
    pytest.mark.backend,
    pytest.mark.timeout(2000),
    pytest.mark.turns(
        "plugins/engines/openai/src/**/*.py",
        "libs/serving/src/**/*.py",
        "testing/src/astraflow_testing/conformance/engine.py",
        "testing/src/astraflow_testing/conformance/_models/*.py",
        unit="openai servers",
    ),
]
ENVIRONMENT = "tests-vllm"
START_S = 290
CPU = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1"}


def write_model(folder: Path, seed: int = 0) -> Path:
    """The suite's model, with heads that vLLM's CPU attention has kernels for, and a tokenizer that takes
    any text, for vLLM tries some of its own."""
    write_tiny_model(folder, hidden=32, head_dim=32, init_std=0.3, context=2048, seed=seed)
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    tokenizer["model"]["unk_token"] = " "
    file.write_text(json.dumps(tokenizer))
    return folder


def serving(command: list[str], ready: str, log: Path) -> Iterator[None]:
    """Run a server until the test is over; fails with the end of its log if it does not start."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            env={**os.environ, **CPU}, start_new_session=True,
        )  # fmt: skip
    try:
        give_up = time.monotonic() + START_S
        while True:
            try:
                with urllib.request.urlopen(ready, timeout=5):
                    break
            except (OSError, urllib.error.URLError):
                told = log.read_text(errors="replace")[-3000:]
                assert process.poll() is None, f"the server ended: {told}"
                assert time.monotonic() < give_up, f"the server is not ready: {told}"
                time.sleep(0.5)
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a plain `vllm serve`, in an environment made as a user would make it."""
    done = subprocess.run(
        [sys.executable, "-m", "astraflow_runtime", "env", "create", ENVIRONMENT, "--plugin", "vllm",
         "--json"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    python = json.loads(done.stdout)["interpreter"]
    folder, port = tmp_path_factory.mktemp("vllm"), free_port()
    command = [
        *(python, "-m", "vllm.entrypoints.cli.main", "serve", str(write_model(folder / "model"))),
        *("--host", "127.0.0.1", "--port", str(port), "--served-model-name", "tiny"),
        *("--dtype", "float32", "--enforce-eager", "--kv-cache-memory-bytes", str(1 << 29)),
    ]
    url = f"http://127.0.0.1:{port}"
    for _ in serving(command, f"{url}/health", folder / "vllm.log"):
        yield f"{url}/v1"


class TestOpenAIOnVllm(EngineConformance):
    own_tests: ClassVar = {"frozen": "test_it_takes_no_weights"}
    deadline_s = 60.0

    @pytest.fixture
    def component(self, vllm: str) -> Subject:
        return installed("engine", "openai", {"url": vllm})

    @pytest.fixture
    def model(self, tmp_path: Path) -> Path:
        return write_model(tmp_path / "model")

    @pytest.fixture
    def other(self, tmp_path: Path) -> Path:
        return write_model(tmp_path / "other", seed=1) / "model.safetensors"

    def test_it_takes_no_weights(self, run: Any, other: Path, examiner: Any) -> None:
        async def scenario(served: Any) -> None:
            with pytest.raises(WeightsError, match="frozen"):
                await served.engine.load_weights(WeightSource("judge", 1, other, "", 0, 0.0))
            examiner(served).examine(*await served.generate(Sampling(8, ignore_eos=True)))

        run(scenario)


@pytest.fixture
def transformers_serve(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """URL and model of a `transformers serve`, which needs the distribution `openai`."""
    model, port = write_model(tmp_path / "model"), free_port()
    command = [
        *(sys.executable, "-m", "transformers.cli.transformers", "serve", str(model)),
        *("--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--dtype", "float32"),
    ]
    url = f"http://127.0.0.1:{port}"
    for _ in serving(command, f"{url}/health", tmp_path / "serve.log"):
        yield f"{url}/v1", model


def test_text_of_transformers_serve_is_what_the_model_says(
    transformers_serve: tuple[str, Path], tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    url, model = transformers_serve
    prompt = np.array([5, 9, 3, 7], np.int32)
    hf = AutoModelForCausalLM.from_pretrained(model, dtype="float32")
    import torch

    whole = hf.generate(torch.tensor(prompt[None].astype(np.int64)), max_new_tokens=16,
                        do_sample=False)  # fmt: skip
    expected = whole[0, len(prompt) :].tolist()

    async def main() -> None:
        keys = {"url": url, "tokens": "text", "served_model": str(model)}
        (build,) = installed("engine", "openai", keys).variants.values()
        engine = build(subject.context("engine", tmp_path))
        async with asyncio.timeout(60):
            await engine.start(model)
            request = GenerateRequest("r", prompt, Sampling(16, temperature=0))
            result = await engine.generate(request)
            await engine.close()
        assert result.tokens.tolist() == expected
        assert np.isnan(result.logprobs).all()

    asyncio.run(main())
