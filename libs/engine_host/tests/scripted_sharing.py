"""A shared engine that samples what its adapters say, and engines that are attached to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save

from astraflow_core.errors import WeightsError
from astraflow_core.types import (
    GenerateRequest,
    GenerateResult,
    LogprobSemantics,
    Sampling,
    WeightSource,
)
from astraflow_engine_host.sharing import main
from astraflow_engine_host.sharing.attached import AttachedEngine
from astraflow_engine_host.sharing.main import SharedEngineSpec
from astraflow_engine_host.sharing.messages import Attachment
from astraflow_engine_host.sharing.seats import line_of
from astraflow_wire.host.sockets import socket_folder
from astraflow_wire.model_files.model_digest import digest_of_model


def adapter(value: int, rank: int = 1, dtype: Any = np.float32, name: str = "lora_A") -> bytes:
    shape = (rank, 2) if name == "lora_A" else (2, rank)
    return save({f"base_model.model.q.{name}.weight": np.full(shape, value, dtype)})


class ScriptedEngine:
    """Samples one token, the first number of the adapter; requests end when ``go`` is set."""

    logprob_semantics = LogprobSemantics(temperature=True, truncation=False)
    context_length = 64
    most_adapters = 3

    def __init__(self) -> None:
        self.adapters: dict[str, tuple[int, int]] = {}
        self.began: list[GenerateRequest] = []
        self.aborted: list[str] = []
        self.go = asyncio.Event()

    async def load_adapter(self, name: str, source: WeightSource | None) -> None:
        if source is None:
            del self.adapters[name]
        elif source.base != "base":
            raise WeightsError(f"{source.base} is not the base")
        else:
            factor = next(iter(load_file(source.path).values()))
            self.adapters[name] = int(factor.flat[0]), source.version

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        token, version = self.adapters[request.adapter]
        self.began.append(request)
        while not self.go.is_set() and request.id not in self.aborted:
            await asyncio.sleep(0)
        reason: Any = "abort" if request.id in self.aborted else "length"
        return GenerateResult(request.id, *_columns(token, version), reason)

    async def score_adapter(self, name: str, tokens: Any) -> Any:
        return np.full(len(tokens), self.adapters[name][0], np.float32)

    async def abort(self, ids: list[str]) -> None:
        self.aborted += ids

    async def health(self) -> dict[str, float]:
        return {"decode_seconds": 2.0, "tokens_generated": 1e9}

    async def close(self) -> None:
        """Close as a killed engine would: no request ends."""


def _columns(token: int, version: int) -> tuple[Any, Any, Any]:
    return np.array([token], np.int32), np.zeros(1, np.float32), np.array([version], np.int32)


class Shared:
    """A shared engine, and those that are attached to it."""

    def __init__(self, folder: Path, places: int) -> None:
        self.folder, self.engine = folder, ScriptedEngine()
        self.spec = SharedEngineSpec(
            use="scripted", options={}, model="", address=f"ipc://{folder}/socket", folder=str(folder), places=places, parent=0,
        )  # fmt: skip
        self.tokens: dict[str, str] = {}
        self._engines: list[AttachedEngine] = []
        self._serving: asyncio.Task[int] | None = None

    def serve(self) -> None:
        engine: Any = self.engine
        self._lines = asyncio.StreamReader()
        self.tell()
        self._serving = asyncio.create_task(
            main._serve(self.spec, engine, self._lines, lambda: None)
        )

    def tell(self) -> None:
        self._lines.feed_data(line_of(self.tokens))

    async def end(self) -> None:
        assert self._serving is not None
        self._serving.cancel()
        await asyncio.gather(self._serving, return_exceptions=True)

    def attachment(self, run: str, token: str = "") -> Attachment:
        """With a new token."""
        if not token:
            token = f"token-{len(self.tokens)}"
            self.tokens[token] = run
            self.tell()
        return Attachment(self.spec.address, token)

    async def attach(self, run: str, token: str = "") -> AttachedEngine:
        engine = AttachedEngine(self.attachment(run, token))
        self._engines.append(engine)
        await engine.start(Path("model"))
        return engine

    async def load(self, engine: AttachedEngine, token: int, version: int, **keys: Any) -> None:
        file = self.folder / "published"
        file.write_bytes(adapter(token))
        digest, size = digest_of_model([file]), file.stat().st_size
        source = WeightSource("p", version, file, digest, size, 0.0, "adapter", "base")
        await engine.load_weights(replace(source, **keys))
        file.unlink()

    async def close(self) -> None:
        self.engine.go.set()
        for engine in self._engines:
            await engine.close()
        await asyncio.sleep(0)
        await self.end()


@asynccontextmanager
async def sharing(places: int = 8) -> AsyncIterator[Shared]:
    folder = socket_folder()
    made = Shared(folder.path, places)
    made.serve()
    try:
        yield made
    finally:
        await made.close()
        folder.close()


def played(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await scenario()

    asyncio.run(bounded())


def request(name: str, **keys: Any) -> GenerateRequest:
    return GenerateRequest(name, np.array([1, 2], np.int32), Sampling(1), **keys)


async def until(holds: Callable[[], object]) -> None:
    while not holds():
        await asyncio.sleep(0.005)
