"""LoRA adapters: as versions of a policy, of which one is swapped under what runs, and several that requests name. The base stays
loaded.

For a version vLLM's own route replaces an adapter in place only in that every later step reads its file again (0.32), and
leaves requests that were started without one without one. So every request of a session names the same adapter,
which at first changes nothing, and our worker extension replaces its weights. An adapter with its own name is never
changed: one that takes its place is another one to the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from astraflow_core.errors import UserError, WeightsError, WrongVersion
from astraflow_core.types import WeightSource
from astraflow_core.types.weights import DTYPE_BYTES
from astraflow_serving.adapter import AdapterShape, adapter_shape
from astraflow_serving.http import ServerClient, ServerRefused
from astraflow_serving.model_folder import ModelFolder
from astraflow_wire.decoding import from_json
from astraflow_wire.host.private_folder import PrivateFolder
from astraflow_wire.model_files.model_digest import digest_of_model
from astraflow_wire.model_files.tensor_file import lay_out


class _Numbers(msgspec.Struct):
    """Of each worker, as texts."""

    results: Annotated[
        list[Annotated[str, msgspec.Meta(pattern="^[0-9]{1,9}$")]], msgspec.Meta(min_length=1)
    ]


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

    async def add(self, name: str, folder: Path, file: Path) -> int:
        """Load ``file`` under ``name``, from ``folder``, which has to stay; returns its number in the workers."""
        os.symlink(file.resolve(), folder / "adapter_model.safetensors")
        _describe(folder, adapter_shape(self._folder, file))
        await self._client.post(
            "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)}
        )
        answer = await self._client.post("/collective_rpc", {"method": "newest_adapter"})
        return int(from_json(answer, _Numbers, "/collective_rpc").results[0])

    async def remove(self, name: str, number: int) -> None:
        """Forget what :meth:`add` loaded."""
        await self._client.post("/v1/unload_lora_adapter", {"lora_name": name})
        body = {"method": "remove_lora", "kwargs": {"lora_id": number}}
        await self._client.post("/collective_rpc", body)

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


@dataclass(eq=False)
class NamedAdapter:
    """``server_name`` and ``number`` are those of the server, which reads it from ``folder``; ``users`` requests run with it. It is
    removed without a user once it is ``replaced``."""

    server_name: str
    number: int
    version: int
    folder: PrivateFolder
    users: int = 0
    replaced: bool = False


class NamedAdapters:
    """At most ``most`` names. Those that were replaced stay for the requests that began with them, at most as many again."""

    def __init__(self, adapters: ServerAdapters, most: int) -> None:
        self._adapters, self._most = adapters, most
        self._names: dict[str, NamedAdapter] = {}
        self._loaded: list[NamedAdapter] = []
        self._numbers = itertools.count(1)
        self._turn = asyncio.Lock()

    async def load(self, name: str, source: WeightSource | None) -> None:
        """Give ``name`` to an adapter, or to none. :class:`WeightsError` unless it fits."""
        async with self._turn:
            made = None if source is None else await self._add(name, source)
            before = self._names.pop(name, None)
            if made is not None:
                self._names[name] = made
            if before is not None:
                await self._replace(before)

    async def clear(self) -> None:
        """Forget them all: another base is loaded."""
        async with self._turn:
            gone, self._names = list(self._names.values()), {}
            for each in gone:
                await self._replace(each)

    def close(self) -> None:
        """Remove their folders; the server may be gone."""
        for each in self._loaded:
            each.folder.close()

    @contextlib.asynccontextmanager
    async def used(
        self, name: str, pinned_version: int | None = None
    ) -> AsyncIterator[NamedAdapter]:
        """The adapter that has the name now, which stays meanwhile; :class:`WrongVersion` if none has, or another version."""
        found = self._names.get(name)
        if found is None:
            raise WrongVersion(
                f"the adapter {name!r} is not loaded; engine 'vllm' has {', '.join(sorted(self._names)) or 'none'}"
            )
        if pinned_version not in (None, found.version):
            raise WrongVersion(
                f"a request is pinned to version {pinned_version}; the adapter {name!r} is version {found.version}"
            )
        found.users += 1
        try:
            yield found
        finally:
            found.users -= 1
            if found.replaced and not found.users:
                await self._remove(found)

    async def _add(self, name: str, source: WeightSource) -> NamedAdapter:
        if name not in self._names and len(self._names) >= self._most:
            raise UserError(
                f"engine 'vllm' has {len(self._names)} adapters, as many as named_adapters allows; raise it, or drop one"
            )
        if len(self._loaded) >= 2 * self._most:
            raise UserError(
                f"engine 'vllm' has {len(self._loaded)} adapters that requests still run with; wait until some have ended"
            )
        await asyncio.to_thread(self._adapters.check, source)
        folder = PrivateFolder(Path(tempfile.gettempdir()), "astraflow-vllm-")
        server_name = f"{self._adapters.name}-{next(self._numbers)}"
        try:
            number = await self._adapters.add(server_name, folder.path, source.path)
        except BaseException as error:
            folder.close()
            if isinstance(error, ServerRefused):
                raise WeightsError(f"vLLM refused version {source.version}: {error}") from error
            raise
        made = NamedAdapter(server_name, number, source.version, folder)
        self._loaded.append(made)
        return made

    async def _replace(self, adapter: NamedAdapter) -> None:
        adapter.replaced = True
        if not adapter.users:
            await self._remove(adapter)

    async def _remove(self, adapter: NamedAdapter) -> None:
        self._loaded.remove(adapter)
        try:
            await self._adapters.remove(adapter.server_name, adapter.number)
        finally:
            adapter.folder.close()


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
