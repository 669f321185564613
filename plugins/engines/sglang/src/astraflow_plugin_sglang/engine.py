"""The engine ``sglang``: what :class:`astraflow_core.protocols.engine.Engine` asks, done by a server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import numpy.typing as npt

from astraflow_core.errors import DeadlineExceeded, PreflightError
from astraflow_core.types import (
    ComponentContext,
    GenerateRequest,
    GenerateResult,
    Images,
    LogprobSemantics,
)
from astraflow_plugin_sglang.backend import SGLangBackend
from astraflow_plugin_sglang.config import SGLangConfig
from astraflow_plugin_sglang.generation import SEMANTICS
from astraflow_plugin_sglang.images import ImageFiles
from astraflow_plugin_sglang.server import LABEL, sglang_server
from astraflow_serving.child_server import AttachedServer
from astraflow_serving.engine import DeskEngine
from astraflow_serving.http import ServerRefused, ServerSilent
from astraflow_serving.model_folder import ModelFolder
from astraflow_serving.routes import own_url
from astraflow_serving.server_backend import ModelServer


class SGLangEngine(DeskEngine[SGLangBackend]):
    """Implements :class:`astraflow_core.protocols.engine.Engine`."""

    def __init__(self, config: SGLangConfig, context: ComponentContext) -> None:
        super().__init__("sglang")
        self._config = config
        self._context = context

    @property
    def logprob_semantics(self) -> LogprobSemantics:
        """Temperature applied, truncation not."""
        return SEMANTICS

    async def start(self, model: Path) -> None:
        """Start a server on ``model``, or join the one of ``url``; then load ``model`` there as version 0."""
        self._check_idle()
        folder = await asyncio.to_thread(ModelFolder.read, model)
        images = await asyncio.to_thread(ImageFiles, model)
        server = self._server(model)
        await server.start()
        backend = SGLangBackend(server, self._config, folder, images)
        try:
            await backend.begin()
        except (ServerSilent, ServerRefused, DeadlineExceeded) as error:
            gone = await server.why_gone()
            await backend.close()
            raise PreflightError(
                f"the SGLang server at {server.url} refuses version 0; was it started on another model? "
                f"{error if gone is None else gone}"
            ) from error
        except BaseException:
            await backend.close()
            raise
        self._backend = backend

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """Sample one sequence; images that cannot be read are refused before it waits."""
        await self._running.images.check(request.prompt, request.images)
        return await super().generate(request)

    async def score_images(
        self, tokens: npt.NDArray[np.int32], images: Images
    ) -> npt.NDArray[np.float32]:
        """As :meth:`score`, of tokens with images."""
        backend = self._running
        await backend.images.check(tokens, images)
        return await self._scored(tokens, lambda name: backend.score_images(name, tokens, images))

    def _server(self, model: Path) -> ModelServer:
        if self._config.url is not None:
            url = own_url(self._config.urls, self._config.router, self._context)
            return AttachedServer(LABEL, url)
        log_file = self._context.directory / "sglang.log"
        return sglang_server(self._config, model, log_file, self._context.seed)
