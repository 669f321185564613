"""The vLLM server that an engine starts: its command, its environment, and what its last words mean."""

from __future__ import annotations

import os
import sys
from importlib import metadata
from pathlib import Path

from astraflow_core.errors import PreflightError
from astraflow_plugin_vllm.config import VllmConfig
from astraflow_plugin_vllm.names import BACKEND, EXTENSION
from astraflow_serving.child_server import ChildServer
from astraflow_serving.model_folder import reads_images
from astraflow_wire.host.sockets import socket_folder

LABEL = "vLLM"
_GIB = 1 << 30
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM 0.32 takes for ``--max-lora-rank``."""
_NEW_ENVIRONMENT = (
    "make its environment (`astraflow env create vllm --plugin vllm`) and set python "
    "= 'env:vllm' in [policies.NAME.engine]"
)
KNOWN_CAUSES = (
    (r"No module named '?vllm", f"this interpreter has no vLLM; {_NEW_ENVIRONMENT}"),
    (
        r"Failed to infer device type|PackageNotFoundError.*vllm",
        f"vLLM does not recognise its own CPU build here; {_NEW_ENVIRONMENT}",
    ),
    (
        r"torchvision::nms does not exist|Could not import module '\w+Config'",
        f"a torchvision for CUDA is installed with a torch for CPU; {_NEW_ENVIRONMENT}",
    ),
    (
        (
            r"[Oo]ut of memory|OutOfMemoryError|No available memory for the cache|"
            r"Available memory on node|larger than the (available|maximum) KV cache|larger than the "
            r"maximum number of tokens that can be stored in KV cache|DefaultCPUAllocator: can't allocate"
        ),
        "memory is short: lower cache_gb, gpu_memory_utilization or context_length",
    ),
    (
        r"[Hh]ead.?size.*not supported|not supported.*[Hh]ead.?size",
        "vLLM's attention has no kernel for the model's head size on this device",
    ),
    (
        r"[Aa]ddress already in use|EADDRINUSE",
        (
            "a port of its workers is in use: set VLLM_PORT to the first of a range of free ports, or stop the "
            "process that listens there"
        ),
    ),
    (
        r"LoRA rank \d+ is greater than max_lora_rank",
        "an adapter has a higher rank than the key lora_rank allows",
    ),
)
"""What a server that ended had said → what it means (measured on vLLM 0.32)."""


class VllmServer(ChildServer):
    """``vllm serve`` on a Unix socket that no other user can reach. ``cpu``: the CPU build."""

    def __init__(
        self,
        config: VllmConfig,
        model: Path,
        log_file: Path,
        seed: int,
        python: str = sys.executable,
        cpu: bool | None = None,
    ) -> None:
        on_cpu = is_cpu_build() if cpu is None else cpu
        if config.lora_rank is not None and config.dtype == "float32" and not on_cpu:
            raise PreflightError(
                "engine 'vllm': on a GPU adapters need 16 bits, vLLM's kernels for them take no float32: set dtype = "
                "'bfloat16', or leave lora_rank out"
            )
        if config.lora_rank is not None and reads_images(model):
            raise PreflightError(
                f"engine 'vllm': adapters do not go with the model in {model}, which reads images: leave lora_rank out"
            )
        self._folder = socket_folder()
        socket = self._folder.path / "socket"
        super().__init__(
            LABEL,
            f"unix:{socket}",
            [python, "-m", "vllm.entrypoints.cli.main", *_arguments(config, model, socket, seed, on_cpu)],
            _environment(config, on_cpu),
            log_file,
            config.start_deadline_s,
            KNOWN_CAUSES,
        )  # fmt: skip

    async def stop(self) -> None:
        """End it, and remove its socket."""
        await super().stop()
        self._folder.close()


def _arguments(config: VllmConfig, model: Path, socket: Path, seed: int, cpu: bool) -> list[str]:
    eager = cpu if config.eager is None else config.eager
    dtype = "float32" if config.dtype == "auto" and cpu else config.dtype
    cache = config.cache_gb or (1.0 if cpu else None)
    arguments = [
        *("serve", str(model), "--uds", str(socket), "--enable-scale-out"),
        *("--generation-config", "vllm"),  # no defaults from the model's folder
        # Tokens in, tokens out needs no tokenizer, but vLLM starts no model that reads images without one. Its cache of
        # pixels would have those of each version.
        *(("--mm-processor-cache-gb", "0") if reads_images(model) else ("--skip-tokenizer-init",)),
        *("--dtype", dtype, "--seed", str(seed % 2**31)),
        *("--max-num-seqs", str(config.max_batch), "--disable-uvicorn-access-log"),
        *("--tensor-parallel-size", str(config.tensor_parallel)),
        *("--logprobs-mode", f"{config.logprobs}_logprobs"),
        *("--worker-extension-cls", EXTENSION),
        *("--weight-transfer-config", f'{{"backend": "{BACKEND}"}}'),
    ]
    if eager:
        arguments.append("--enforce-eager")
    if config.context_length is not None:
        arguments += ["--max-model-len", str(config.context_length)]
    if cache is not None:
        arguments += ["--kv-cache-memory-bytes", str(int(cache * _GIB))]
    else:
        arguments += ["--gpu-memory-utilization", str(config.gpu_memory_utilization)]
    if config.sleep_mode:
        arguments.append("--enable-sleep-mode")
    if config.lora_rank is not None:
        rank = next(rank for rank in _RANKS if rank >= config.lora_rank)
        named = config.named_adapters
        arguments += ["--enable-lora", "--max-lora-rank", str(rank), "--max-loras", str(1 + named)]
        # Replaced ones stay for the requests that began with them, and that of the versions is never evicted: its file is gone.
        arguments += ["--max-cpu-loras", str(2 + 2 * named)]
    return [*arguments, *config.arguments]


def _environment(config: VllmConfig, cpu: bool) -> dict[str, str]:
    """Our server, with the routes for weights, pauses and the like open; only this process can reach it."""
    own = {**os.environ, "VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"}
    own.setdefault("HF_HUB_OFFLINE", "1")
    if config.lora_rank is not None:
        own["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if cpu:
        own["OMP_NUM_THREADS"] = str(config.threads)
        own.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    return own


def is_cpu_build() -> bool:
    """Whether the vLLM of this interpreter is the one for CPUs."""
    try:
        return "cpu" in metadata.version("vllm")
    except metadata.PackageNotFoundError:
        return True
