"""How an interpreter for vLLM is made: the CPU build where there is no NVIDIA GPU, else the GPU build."""

from __future__ import annotations

from pathlib import Path

from astraflow_core.config.environments import PythonEnvironment
from astraflow_core.errors import UserError
from astraflow_serving.gpu import DRIVER

CPU, GPU = "runtime-cpu", "runtime"
_PROVED_CPU = Path(__file__).with_name("constraints-cpu.txt")


def environment(extra: str | None) -> PythonEnvironment:
    """The recipe for ``extra``, or for this machine.

    The CPU build pulls distributions that break it with a CPU torch: torchaudio and torchcodec from the
    package index are CUDA builds, and transformers fails on importing them; so is torchvision, which models that
    read images need, and which ``finish`` repairs. Triton, a gigabyte, is used by kernels that do not exist for the CPU.
    """
    chosen = extra or (GPU if DRIVER.exists() else CPU)
    if chosen == CPU:
        return PythonEnvironment(
            extra=CPU,
            constraints=(_PROVED_CPU,),
            remove=("torchaudio", "torchcodec", "triton"),
            finish="astraflow_plugin_vllm.finish",
        )
    if chosen == GPU:
        return PythonEnvironment(extra=GPU)
    raise UserError(f"plugin 'vllm' has no extra {chosen!r}: {GPU!r} is for GPUs, {CPU!r} for CPUs")
