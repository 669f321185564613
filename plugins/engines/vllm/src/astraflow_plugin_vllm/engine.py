"""The engine ``vllm``: what :class:`astraflow_core.protocols.engine.Engine` asks, done by a server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from astraflow_core.errors import UserError, WrongVersion
from astraflow_core.types import (
    ComponentContext,
    GenerateRequest,
    GenerateResult,
    Images,
    LogprobSemantics,
    WeightSource,
)
from astraflow_plugin_vllm.adapters import NamedAdapters
from astraflow_plugin_vllm.backend import VllmBackend, context_length
from astraflow_plugin_vllm.config import VllmConfig
from astraflow_plugin_vllm.images import RequestImages
from astraflow_plugin_vllm.server import LABEL, VllmServer
from astraflow_plugin_vllm.updates import join
from astraflow_serving.buckets import Bucket, Rendezvous
from astraflow_serving.child_server import AttachedServer
from astraflow_serving.engine import DeskEngine, end_requests, end_superseded
from astraflow_serving.gpu import DRIVER
from astraflow_serving.http import ServerClient, ServerRefused, ServerSilent
from astraflow_serving.model_folder import ModelFolder
from astraflow_serving.routes import own_url
from astraflow_serving.server_backend import ModelServer


class VllmEngine(DeskEngine[VllmBackend]):
    """Implements :class:`astraflow_core.protocols.engine.Engine`. ``server`` is for tests: one that is
    used as it is, instead of what the config asks for."""

    def __init__(
        self, config: VllmConfig, context: ComponentContext, server: ModelServer | None = None
    ) -> None:
        super().__init__("vllm")
        self._config = config
        self._context = context
        self._given = server

    @property
    def logprob_semantics(self) -> LogprobSemantics:
        """As the key ``logprobs`` says."""
        processed = self._config.logprobs == "processed"
        return LogprobSemantics(temperature=processed, truncation=processed)

    async def start(self, model: Path) -> None:
        """Start the server on the folder ``model``, or join the one of ``url`` and load it there."""
        self._check_idle()
        folder = await asyncio.to_thread(ModelFolder.read, model)
        images = await asyncio.to_thread(RequestImages, model)
        server = self._given or self._server(model)
        await server.start()
        backend: VllmBackend | None = None
        try:
            client = ServerClient(f"{LABEL} server", server.url, self._config.control_deadline_s)
            try:
                length = await context_length(client)
            finally:
                await client.close()
            backend = VllmBackend(server, self._config, folder, length, images)
            await backend.begin(fresh=self._given is None and self._config.url is None)
        except BaseException:
            await (server.stop() if backend is None else backend.close())
            raise
        self._backend = backend

    def _server(self, model: Path) -> ModelServer:
        if self._config.url is not None:
            url = own_url(self._config.urls, self._config.router, self._context)
            return AttachedServer(LABEL, url)
        log_file = self._context.directory / "vllm.log"
        return VllmServer(self._config, model, log_file, self._context.seed)

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """Sample one sequence; images that cannot be read are refused before it waits. A request that names an adapter keeps the
        one that has its name now."""
        await self._running.images.read(request.prompt, request.images)
        if not request.adapter:
            return await super().generate(request)
        async with self._named.used(request.adapter, request.pinned_version) as held:
            own = replace(request, adapter=held.server_name, pinned_version=None)
            try:
                result = await super().generate(own)
            except WrongVersion as error:
                raise WrongVersion(
                    f"request {request.id!r}: the base of the adapter {request.adapter!r} was replaced"
                ) from error
            return replace(result, versions=np.full_like(result.versions, held.version))

    async def score_images(
        self, tokens: npt.NDArray[np.int32], images: Images
    ) -> npt.NDArray[np.float32]:
        """As :meth:`score`, of tokens with images."""
        backend = self._running
        await backend.images.read(tokens, images)
        return await self._scored(tokens, lambda name: backend.score_images(name, tokens, images))

    @property
    def most_adapters(self) -> int:
        """The key ``named_adapters``."""
        return self._config.named_adapters

    @property
    def _named(self) -> NamedAdapters:
        named = self._running.named
        if named is None:
            raise UserError(
                "engine 'vllm' serves adapters by name only with named_adapters above 0"
            )
        return named

    async def load_adapter(self, name: str, source: WeightSource | None) -> None:
        """While requests run. Each adapter is one of the server's own."""
        try:
            await self._named.load(name, source)
        except (ServerSilent, ServerRefused) as error:
            raise await self._running.explain(error) from error

    async def score_adapter(
        self, name: str, tokens: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.float32]:
        """As :meth:`score`, with an adapter."""
        backend = self._running
        async with self._named.used(name) as held:
            return await self._scored(
                tokens,
                lambda identifier: backend.score_adapter(identifier, tokens, held.server_name),
            )

    async def join(self, rendezvous: Rendezvous) -> None:
        """Take part in a group in which the trainer broadcasts versions (capability ``weights.collective``).
        Raises :class:`UserError` without CUDA."""
        _need_cuda()
        backend = self._running
        try:
            await join(backend.client, rendezvous)
        except (ServerSilent, ServerRefused) as error:
            raise await backend.explain(error) from error

    async def receive(self, version: int, buckets: Sequence[Bucket]) -> None:
        """As ``load_weights``, of a version that comes from the trainer's GPU: by the broadcast that
        :meth:`join` made ready, or out of its memory (``weights.ipc``). A bucket that is not what was announced is
        refused and the version before is brought in again, if that came as a file; else the engine is lost."""
        _need_cuda()
        backend = self._running
        if not backend.paused:
            raise RuntimeError("engine 'vllm' receives weights only while it is paused")
        await backend.receive(version, buckets)
        await end_superseded(backend, version)

    async def sleep(self, level: int) -> None:
        """Level 1 keeps the weights in main memory, level 2 drops them; both drop keys and values, so
        what is frozen ends with what it has. Needs ``sleep_mode = true``."""
        backend = self._running
        if not self._config.sleep_mode:
            raise UserError("engine 'vllm' can sleep only with sleep_mode = true, on CUDA or ROCm")
        backend.desk.close()
        await backend.sleep(level)
        await end_requests(backend, list(backend.desk.running))

    async def wake(self) -> None:
        """Undo :meth:`sleep`. The engine stays paused, as it was when it fell asleep."""
        await self._running.wake()


def _need_cuda() -> None:
    if not DRIVER.exists():
        raise UserError(
            "engine 'vllm' receives weights from a trainer's GPU on CUDA only, and this machine has no NVIDIA "
            "driver: use a transport that transfers files, such as http"
        )
