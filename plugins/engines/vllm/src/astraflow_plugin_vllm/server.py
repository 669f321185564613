"""The server: a child of ours, or one that runs already; how it is started and why it ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Protocol

from astraflow_core.errors import DeadlineExceeded, PreflightError, RunFailed
from astraflow_plugin_vllm.client import Client, ServerRefused, ServerSilent
from astraflow_plugin_vllm.config import VllmConfig
from astraflow_plugin_vllm.names import BACKEND, EXTENSION

log = logging.getLogger("astraflow.vllm")
STOP_S = 1.5
_LOOK_EVERY_S = 0.2
_LAST_LINES = 12
_GIB = 1 << 30
_NEW_ENVIRONMENT = (
    "make its environment (`astraflow env create vllm --plugin vllm`) and name it: "
    "python = 'env:vllm' in [policies.NAME.engine]"
)
KNOWN_CAUSES = (
    (r"No module named '?vllm", f"this interpreter has no vLLM; {_NEW_ENVIRONMENT}"),
    (
        r"Failed to infer device type|PackageNotFoundError.*vllm",
        f"vLLM does not recognise its own CPU build here; {_NEW_ENVIRONMENT}",
    ),
    (
        r"torchvision::nms does not exist|Could not import module '\w+Config'",
        f"a torchvision for CUDA lies beside a torch for CPU; {_NEW_ENVIRONMENT}",
    ),
    (
        (
            r"[Oo]ut of memory|OutOfMemoryError|No available memory for the cache|"
            r"Available memory on node|larger than the (available|maximum) KV cache|larger than the "
            r"maximum number of tokens that can be stored in KV cache"
        ),
        "memory is short: lower cache_gb, gpu_memory_utilization or context_length",
    ),
    (
        r"[Hh]ead.?size.*not supported|not supported.*[Hh]ead.?size",
        "vLLM's attention has no kernel for the model's head size on this device",
    ),
)
"""What the last lines of a server that did not start say → what it means (measured on vLLM 0.32)."""


class Server(Protocol):
    """Where requests go. ``url`` is as :class:`Client` takes it."""

    @property
    def url(self) -> str:
        """Its address."""

    async def start(self) -> None:
        """Return when it answers; raises what a person can read."""

    async def why_gone(self) -> str | None:
        """Why it does not answer any more, as far as one can tell; ``None`` if it should."""

    def kill(self) -> None:
        """End it at once, if it is ours."""

    async def stop(self) -> None:
        """End it and free what it held, if it is ours."""


@dataclass(frozen=True, slots=True)
class AttachedServer:
    """A server that somebody else started, and whose life is not our business."""

    url: str

    async def start(self) -> None:
        """Make sure that it is there."""
        client = Client(self.url, 10.0)
        try:
            await client.get("/health")
        except (ServerSilent, ServerRefused, DeadlineExceeded) as error:
            raise PreflightError(
                f"no vLLM server answers at url = {self.url!r}: {error}; start it, or leave the key "
                "out to have one started"
            ) from error
        finally:
            await client.close()

    async def why_gone(self) -> str | None:
        """It should be there."""
        return None

    def kill(self) -> None:
        """Not ours to end."""

    async def stop(self) -> None:
        """Not ours to end."""


class ChildServer:
    """``vllm serve`` in a process group of its own, on a Unix socket that nobody else can reach.

    ``cpu``: the CPU build. The output goes to ``log_file``, which the errors quote.
    """

    def __init__(
        self,
        config: VllmConfig,
        model: Path,
        log_file: Path,
        seed: int,
        python: str = sys.executable,
        cpu: bool | None = None,
    ) -> None:
        self._config = config
        self._model = model
        self._log_file = log_file
        self._seed = seed
        self._python = python
        self._cpu = is_cpu_build() if cpu is None else cpu
        self._folder = Path(tempfile.mkdtemp(prefix="astraflow-vllm-"))
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        """Its socket."""
        return f"unix:{self._folder / 'socket'}"

    @property
    def pid(self) -> int:
        """The process, which is also its group."""
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Start it and wait until it is ready. Raises :class:`RunFailed` with its last lines and, if they
        are known, the cause and the remedy; :class:`DeadlineExceeded` if it takes too long."""
        self._log_file.parent.mkdir(parents=True, exist_ok=True)
        with self._log_file.open("wb") as output:
            self._process = await asyncio.create_subprocess_exec(
                *self.command(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                env=self.environment(),
                process_group=0,
            )
        try:
            await self._ready()
        except BaseException:
            await self.stop()
            raise

    async def _ready(self) -> None:
        assert self._process is not None
        deadline_s = self._config.start_deadline_s
        give_up = time.monotonic() + deadline_s
        client = Client(self.url, deadline_s)
        try:
            while time.monotonic() < give_up:
                if self._process.returncode is not None:
                    raise RunFailed(
                        f"the vLLM server {self._end()} before it was ready{self._told()}"
                    )
                with contextlib.suppress(ServerSilent, ServerRefused):
                    await client.get("/health")
                    return
                await asyncio.sleep(_LOOK_EVERY_S)
        finally:
            await client.close()
        raise DeadlineExceeded("the vLLM server", f"its start{self._told()}", deadline_s)

    def command(self) -> list[str]:
        """The command line."""
        config = self._config
        eager = self._cpu if config.eager is None else config.eager
        dtype = "float32" if config.dtype == "auto" and self._cpu else config.dtype
        cache = config.cache_gb or (1.0 if self._cpu else None)
        command = [
            *(self._python, "-m", "astraflow_plugin_vllm.serve", "serve", str(self._model)),
            *("--uds", str(self._folder / "socket"), "--enable-scale-out"),
            # Tokens in, tokens out: no tokenizer, and no defaults from the model's folder.
            *("--skip-tokenizer-init", "--generation-config", "vllm"),
            *("--dtype", dtype, "--seed", str(self._seed % 2**31)),
            *("--max-num-seqs", str(config.max_batch), "--disable-uvicorn-access-log"),
            *("--tensor-parallel-size", str(config.tensor_parallel)),
            *("--logprobs-mode", f"{config.logprobs}_logprobs"),
        ]
        command += ["--worker-extension-cls", EXTENSION]
        command += ["--weight-transfer-config", f'{{"backend": "{BACKEND}"}}']
        if eager:
            command.append("--enforce-eager")
        if config.context_length is not None:
            command += ["--max-model-len", str(config.context_length)]
        if cache is not None:
            command += ["--kv-cache-memory-bytes", str(int(cache * _GIB))]
        else:
            command += ["--gpu-memory-utilization", str(config.gpu_memory_utilization)]
        if config.sleep_mode:
            command.append("--enable-sleep-mode")
        return [*command, *config.arguments]

    def environment(self) -> dict[str, str]:
        """Ours, without the run's token; with the routes for weights, pauses and the like open, which
        nobody but us can reach."""
        own = {k: v for k, v in os.environ.items() if k != "ASTRAFLOW_TOKEN"}
        own |= {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"}
        own.setdefault("HF_HUB_OFFLINE", "1")
        if self._cpu:
            own["OMP_NUM_THREADS"] = str(self._config.threads)
            own.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        return own

    async def why_gone(self) -> str | None:
        """How it ended; one that is about to end has a second for it."""
        assert self._process is not None
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), 1.0)
        if self._process.returncode is None:
            return None
        return f"the vLLM server {self._end()}{self._told()}"

    def _end(self) -> str:
        assert self._process is not None and self._process.returncode is not None
        code = self._process.returncode
        if code >= 0:
            return f"ended with exit code {code}"
        hint = " (out of memory?)" if code == -signal.SIGKILL else ""
        return f"was killed by {signal.Signals(-code).name}{hint}"

    def _told(self) -> str:
        text = self._log_file.read_text(encoding="utf-8", errors="replace")
        causes = [meaning for pattern, meaning in KNOWN_CAUSES if re.search(pattern, text)]
        cause = f": {causes[0]}" if causes else ""
        lines = "\n  ".join(text.splitlines()[-_LAST_LINES:])
        return f"{cause}; its last lines (all: {self._log_file}):\n  {lines}"

    def kill(self) -> None:
        """Kill its process group."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def stop(self) -> None:
        """Ask it to end, then kill what is left of its group."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), STOP_S)
            self.kill()
            await self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def is_cpu_build() -> bool:
    """Whether the vLLM of this interpreter is the one for CPUs."""
    try:
        return "cpu" in metadata.version("vllm")
    except metadata.PackageNotFoundError:
        return True
