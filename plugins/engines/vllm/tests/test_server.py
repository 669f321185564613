"""How a server is started and what its end is called. The processes here are stand-ins, scripts that behave
as a server might; the real one is started by the tests marked ``backend``."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from astraflow_core.errors import AstraFlowError, DeadlineExceeded, PreflightError, RunFailed
from astraflow_plugin_vllm.config import VllmConfig
from astraflow_plugin_vllm.server import VllmServer
from astraflow_serving.child_server import AttachedServer

ALIVE = """
import http.server, os, socketserver, subprocess, sys, time
path = sys.argv[sys.argv.index("--uds") + 1]
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open(os.environ["NOTE"], "w").write(f"{os.getpid()} {child.pid}")
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
    def address_string(self): return "-"
socketserver.UnixStreamServer(path, Handler).serve_forever()
"""


def child(tmp_path: Path, script: str = "", cpu: bool = True, **keys: Any) -> VllmServer:
    """A server whose interpreter runs ``script`` whatever it is asked to run."""
    (tmp_path / "script.py").write_text(script)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {tmp_path}/script.py "$@"\n')
    python.chmod(0o755)
    log = tmp_path / "state" / "vllm.log"
    return VllmServer(VllmConfig(**keys), tmp_path / "model", log, 7, str(python), cpu)


def started(server: VllmServer) -> None:
    async def run() -> None:
        try:
            await server.start()
        finally:
            await server.stop()

    asyncio.run(run())


def option(server: VllmServer, name: str) -> str | None:
    command = server.command
    return command[command.index(name) + 1] if name in command else None


def test_a_cpu_gets_float32_no_compilation_and_a_small_cache(tmp_path: Path) -> None:
    server = child(tmp_path, context_length=64, cache_gb=0.5, max_batch=3)
    assert option(server, "--dtype") == "float32" and "--enforce-eager" in server.command
    assert option(server, "--kv-cache-memory-bytes") == str(1 << 29)
    assert option(server, "--max-model-len") == "64" and option(server, "--max-num-seqs") == "3"
    assert option(server, "--logprobs-mode") == "processed_logprobs"
    assert "--gpu-memory-utilization" not in server.command
    assert server.environment["OMP_NUM_THREADS"] == "1"


def test_a_gpu_gets_what_vllm_chooses_and_own_arguments_come_last(tmp_path: Path) -> None:
    keys = {"sleep_mode": True, "tensor_parallel": 2, "logprobs": "raw"}
    server = child(tmp_path, cpu=False, arguments=("--dtype", "half"), **keys)
    assert option(server, "--dtype") == "auto" and "--enforce-eager" not in server.command
    assert option(server, "--gpu-memory-utilization") == "0.9"
    assert "--kv-cache-memory-bytes" not in server.command
    assert "--enable-sleep-mode" in server.command
    assert option(server, "--tensor-parallel-size") == "2"
    assert option(server, "--logprobs-mode") == "raw_logprobs"
    assert server.command[-2:] == ["--dtype", "half"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4}'),
        ('--speculative_config={"method": "ngram"}',),
        ("--dtype", "half", "-sc", "{}"),
    ],
)
def test_its_own_drafts_are_refused(arguments: tuple[str, ...]) -> None:
    with pytest.raises(
        ValidationError, match=r"arguments has -+s.*are not those of the policy.*'torch'"
    ):
        VllmConfig(arguments=arguments)


def test_adapters_on_a_gpu_need_sixteen_bits(tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match="set dtype = 'bfloat16'"):
        child(tmp_path, cpu=False, lora_rank=8, dtype="float32")
    for cpu, dtype in ((True, "float32"), (False, "bfloat16"), (False, "auto")):
        command = child(tmp_path, cpu=cpu, lora_rank=9, dtype=dtype).command
        assert command[command.index("--max-lora-rank") + 1] == "16"


def test_the_runs_token_stays_with_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTRAFLOW_TOKEN", "secret")
    assert "secret" not in child(tmp_path).environment.values()


@pytest.mark.parametrize(
    ("said", "meaning"),
    [
        ("ModuleNotFoundError: No module named 'vllm'", "astraflow env create vllm --plugin vllm"),
        ("RuntimeError: Failed to infer device type", "its own CPU build"),
        ("RuntimeError: operator torchvision::nms does not exist", "torchvision for CUDA"),
        ("ValueError: No available memory for the cache blocks.", "lower cache_gb"),
        ("torch.OutOfMemoryError: CUDA out of memory.", "gpu_memory_utilization"),
        ("RuntimeError: DefaultCPUAllocator: can't allocate memory", "context_length"),
        ("OSError: [Errno 98] Address already in use", "set VLLM_PORT"),
        ("LoRA rank 64 is greater than max_lora_rank 16.", "lora_rank"),
        ("ValueError: Head size 8 is not supported by CPU_ATTN", "head size"),
        ("a cause that nobody knows", "its last lines"),
    ],
)
def test_a_server_that_does_not_start_is_quoted_and_explained(
    tmp_path: Path, said: str, meaning: str
) -> None:
    script = f"import sys; sys.stderr.write({said!r} + chr(10)); sys.exit(3)"
    with pytest.raises(RunFailed) as caught:
        started(child(tmp_path, script))
    for part in ("ended with exit code 3 before it was ready", said, meaning):
        assert part in str(caught.value)


def test_a_server_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(DeadlineExceeded, match="still loading"):
        started(
            child(
                tmp_path, "import time; print('still loading', flush=True); time.sleep(60)",
                start_deadline_s=1.0,
            )
        )  # fmt: skip
    assert time.monotonic() - began < 40


def test_a_server_that_is_ready_ends_with_all_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTE", str(tmp_path / "note"))
    server = child(tmp_path, ALIVE)

    async def run() -> str | None:
        await server.start()
        assert await server.why_gone() is None
        os.kill(server.pid, 9)
        reason = await server.why_gone()
        await server.stop()
        return reason

    reason = asyncio.run(run())
    assert reason is not None and "was killed by SIGKILL (out of memory?)" in reason
    pids = [int(pid) for pid in (tmp_path / "note").read_text().split()]
    _until(lambda: not any(_runs(pid) for pid in pids))
    assert not Path(server.url.removeprefix("unix:")).parent.exists()


FAKE_VLLM = """
import os, subprocess, sys, time
def main():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    open(os.environ["NOTE"], "w").write(f"{os.getpid()} {child.pid}")
    time.sleep(60)

if __name__ == "__main__":
    main()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_server_does_not_outlive_an_engine_host_that_was_killed(tmp_path: Path) -> None:
    package = tmp_path / "vllm" / "entrypoints" / "cli"
    package.mkdir(parents=True)
    (package / "main.py").write_text(FAKE_VLLM)
    note = tmp_path / "note"
    start = (
        "import subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-m', 'astraflow_serving.guard', "
        "sys.executable, '-m', 'vllm.entrypoints.cli.main'], process_group=0)\n"
        "time.sleep(60)"
    )
    own = {**os.environ, "PYTHONPATH": str(tmp_path), "NOTE": str(note)}
    host = subprocess.Popen([sys.executable, "-c", start], env=own)
    try:
        _until(lambda: note.exists() and len(note.read_text().split()) == 2)
    finally:
        host.kill()
        host.wait()
    pids = [int(pid) for pid in note.read_text().split()]
    _until(lambda: not any(_runs(pid) for pid in pids))


def _until(holds: Callable[[], bool], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_a_server_that_is_not_ours_must_be_running() -> None:
    with pytest.raises(PreflightError, match=r"unix:/nowhere/socket.*start it, or remove the key"):
        asyncio.run(AttachedServer("vLLM", "unix:/nowhere/socket").start())
    assert issubclass(PreflightError, AstraFlowError)
