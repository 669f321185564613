"""LoRA adapters as versions of a policy: the base stays loaded, an adapter is swapped under what runs.

vLLM's own route replaces an adapter in place only in that every later step reads its file again (0.32), and
leaves requests that were started without one without one. So every request of a session names the same adapter,
which at first changes nothing, and our worker extension replaces its weights.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import msgspec

from astraflow_core.errors import WeightsError
from astraflow_core.types import WeightSource
from astraflow_core.types.weights import DTYPE_BYTES
from astraflow_serving.adapter import AdapterShape, adapter_shape
from astraflow_serving.http import ServerClient
from astraflow_serving.model_folder import ModelFolder
from astraflow_wire.model_files.model_digest import digest_of_model
from astraflow_wire.model_files.tensor_file import lay_out


class ServerAdapters:
    """``name`` is the server's name for the adapter of this session. ``base`` is the digest of the version
    that is loaded whole; adapters for another one are refused."""

    def __init__(
        self, client: ServerClient, folder: ModelFolder, name: str, most_rank: int
    ) -> None:
        self.name = name
        self._client = client
        self._folder = folder
        self._most_rank = most_rank
        self._base: str | None = None

    def rebase(self, digest: str) -> None:
        """A whole version was loaded."""
        self._base = digest

    def check(self, source: WeightSource) -> None:
        """Raise :class:`WeightsError` unless ``source`` fits the model and what is loaded of it. Reads the
        model's folder if nothing else was loaded yet."""
        shape = adapter_shape(self._folder, source.path)
        if shape.rank > self._most_rank:
            raise WeightsError(
                f"version {source.version} is an adapter of rank {shape.rank}, above lora_rank = "
                f"{self._most_rank}"
            )
        if self._base is None:
            self._base = digest_of_model(self._folder.files)
        if source.base != self._base:
            raise WeightsError(
                f"version {source.version} is an adapter for the base {source.base}; {self._base} is loaded"
            )

    async def begin(self) -> None:
        """Load one that changes nothing, under the name that all requests use."""
        with tempfile.TemporaryDirectory(prefix="astraflow-vllm-") as folder:
            self._write_zero(Path(folder))
            body = {"lora_name": self.name, "lora_path": folder}
            await self._client.post("/v1/load_lora_adapter", body)
            await self._client.post("/collective_rpc", {"method": "remember_adapter"})

    async def reset(self) -> None:
        """Change nothing again."""
        with tempfile.TemporaryDirectory(prefix="astraflow-vllm-") as folder:
            self._write_zero(Path(folder))
            await self._swap(folder)

    async def bring(self, version: int, file: Path) -> None:
        """Replace it by ``file``; the server's tokens carry the number of the version from now on."""
        with tempfile.TemporaryDirectory(prefix="astraflow-vllm-") as folder:
            os.symlink(file.resolve(), Path(folder) / "adapter_model.safetensors")
            _describe(Path(folder), adapter_shape(self._folder, file))
            await self._swap(folder)
        await self._client.post("/update_weight_version", {"new_version": str(version)})

    async def _swap(self, folder: str) -> None:
        body = {"method": "swap_adapter", "kwargs": {"path": folder}}
        await self._client.post("/collective_rpc", body)

    def _write_zero(self, folder: Path) -> None:
        """An adapter of rank 1 with zeros."""
        module, (rows, columns) = next(
            (name.removesuffix(".weight"), spec.shape)
            for name, spec in self._folder.tensors.items()
            if name.endswith("_proj.weight") and len(spec.shape) == 2
        )
        header, specs = lay_out(
            (f"base_model.model.{module}.lora_{side}.weight", "F32", shape)
            for side, shape in (("A", (1, columns)), ("B", (rows, 1)))
        )
        zeros = bytes(sum(DTYPE_BYTES[s.dtype] * s.shape[0] * s.shape[1] for s in specs))
        (folder / "adapter_model.safetensors").write_bytes(header + zeros)
        _describe(folder, AdapterShape(1, (module,)))


def _describe(folder: Path, shape: AdapterShape) -> None:
    """PEFT's ``adapter_config.json``, with a scale of 1."""
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": shape.rank,
        "lora_alpha": shape.rank,
        "target_modules": sorted({module.rpartition(".")[2] for module in shape.modules}),
        "bias": "none",
    }
    (folder / "adapter_config.json").write_bytes(msgspec.json.encode(config))
