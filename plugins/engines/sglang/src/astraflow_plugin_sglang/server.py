"""The SGLang server that an engine starts: its command, and what its last words mean."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from astraflow_plugin_sglang.config import SGLangConfig
from astraflow_plugin_sglang.demands import demands
from astraflow_plugin_sglang.images import server_variables
from astraflow_serving.child_server import ChildServer, free_port

LABEL = "SGLang"
KNOWN_CAUSES = (
    (
        r"No module named '?sglang|No such file or directory: '[^']*python",
        (
            "that interpreter is not there or has no SGLang: install sglang into a separate environment "
            "and name its python in the key server_python"
        ),
    ),
    (
        r"No module named '?sgl_kernel",
        "SGLang's kernels are not installed; there are wheels for CUDA only, so on a CPU use another engine",
    ),
    (
        r"CUDA error|No CUDA GPUs are available|Found no NVIDIA driver|no accelerator",
        "SGLang found no GPU that it can use: see `nvidia-smi`, and CUDA_VISIBLE_DEVICES",
    ),
    (
        r"[Oo]ut of memory|OutOfMemoryError|Not enough memory|mem.fraction.static",
        "memory is short: lower memory_fraction, context_length or max_batch",
    ),
    (
        r"[Aa]ddress already in use|EADDRINUSE",
        "its port was taken while it started: remove the key port, or stop the process that listens there",
    ),
)
"""What a server that ended had said → what it means (from the sources of SGLang 0.5.23)."""

QUIET_HEALTH = {"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0"}
"""Without it SGLang samples a token for each answer of `/health`, and says for 20 s nothing while it is paused."""


def sglang_server(config: SGLangConfig, model: Path, log_file: Path, seed: int) -> ChildServer:
    """On loopback, and as :mod:`astraflow_plugin_sglang.demands` has it."""
    port = free_port(config.port)
    command = [
        *(config.server_python or sys.executable, "-m", "sglang.launch_server"),
        *("--model-path", str(model), "--host", "127.0.0.1", "--port", str(port)),
        *("--random-seed", str(seed % 2**31), "--dtype", config.dtype),
        *("--tp-size", str(config.tensor_parallel)),
        *("--max-running-requests", str(config.max_batch)),
    ]
    for demand in demands(config.keep):
        command += demand.argument.split()
    if config.context_length is not None:
        command += ["--context-length", str(config.context_length)]
    if config.memory_fraction is not None:
        command += ["--mem-fraction-static", str(config.memory_fraction)]
    command += config.arguments
    own = {**os.environ, **server_variables(model, os.environ), **QUIET_HEALTH}
    own.setdefault("HF_HUB_OFFLINE", "1")
    own.pop("SGLANG_RETURN_ORIGINAL_LOGPROB", None)  # with it they are not what SEMANTICS says
    url = f"http://127.0.0.1:{port}"
    return ChildServer(
        LABEL, url, command, own, log_file, config.start_deadline_s, KNOWN_CAUSES
    )  # fmt: skip
