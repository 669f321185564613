"""The engine ``openai``: what a frozen model can do of :class:`astraflow_core.protocols.engine.Engine`."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from astraflow_core.errors import AstraFlowError, PreflightError, UserError
from astraflow_core.protocols.engine import PauseMode
from astraflow_core.types import (
    ComponentContext,
    GenerateRequest,
    LogprobSemantics,
    Sampling,
    WeightSource,
)
from astraflow_plugin_openai.backend import OpenAIBackend
from astraflow_plugin_openai.completions import Texts
from astraflow_plugin_openai.config import OpenAIConfig
from astraflow_plugin_openai.patience import patiently
from astraflow_serving.engine import DeskEngine
from astraflow_serving.http import ServerClient
from astraflow_serving.model_folder import ModelConfig
from astraflow_wire.decoding import from_json


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class OpenAIEngine(DeskEngine[OpenAIBackend]):
    """Implements :class:`astraflow_core.protocols.engine.Engine` for a model that never changes: its
    version is 0."""

    def __init__(self, config: OpenAIConfig, context: ComponentContext) -> None:
        super().__init__("openai")
        self._config = config

    @property
    def logprob_semantics(self) -> LogprobSemantics:
        """As the key ``logprobs`` says."""
        processed = self._config.logprobs == "processed"
        return LogprobSemantics(temperature=processed, truncation=processed)

    async def start(self, model: Path) -> None:
        """Find the model at the server. The folder ``model`` has the configuration of the same model, and
        its tokenizer; weights it needs none. Raises :class:`PreflightError` if the server lacks what the
        keys say of it."""
        self._check_idle()
        config = self._config
        known = await asyncio.to_thread(ModelConfig.read, model)
        texts = await asyncio.to_thread(Texts, model) if config.tokens == "text" else None
        stall_s = config.stall_deadline_s
        client = ServerClient("server", config.url, stall_s, stall_s, self._headers())
        try:
            served = await self._find(client)
            length = config.context_length or served.max_model_len or known.positions
            backend = OpenAIBackend(config, client, known, served.id, length, texts)
            await self._probe(backend, known)
        except BaseException:
            await client.close()
            raise
        self._backend = backend

    def _headers(self) -> dict[str, str]:
        name = self._config.api_key_env
        if name is None:
            return {}
        key = os.environ.get(name)
        if not key:
            raise PreflightError(f"api_key_env = {name!r}: the environment has no such variable")
        return {"Authorization": f"Bearer {key}"}

    async def _find(self, client: ServerClient) -> _Model:
        wanted = self._config.served_model
        try:
            if wanted is not None:
                answer = await client.get("/models")
            else:
                answer = await patiently(lambda: client.get("/models"), self._config.retry_s)
            listed = from_json(answer, _Models, "/models").data
        except AstraFlowError as error:
            if wanted is not None:
                return _Model(wanted)  # not every server can list; the probe decides
            raise PreflightError(
                f"no OpenAI-compatible server lists its models at url = {client.url!r}: {error}; is it "
                "running, and does the URL end where its /models begins? If it lists none, set served_model"
            ) from error
        names = [one.id for one in listed]
        if wanted is None and len(listed) == 1:
            return listed[0]
        if wanted not in names:
            raise PreflightError(
                f"the server at {client.url} serves {', '.join(map(repr, names)) or 'nothing'}: name one by "
                f"served_model{'' if wanted is None else f', instead of {wanted!r}'}"
            )
        return listed[names.index(wanted)]

    async def _probe(self, backend: OpenAIBackend, model: ModelConfig) -> None:
        """Sample one token, to check that the server responds and supports what the key ``tokens`` says."""
        prompt = np.array([*model.eos[:1], 0][:1], dtype=np.int32)
        probe = backend.completion(GenerateRequest("probe", prompt, Sampling(1)))
        try:
            await backend.follow(probe)
            count = len(probe.result(aborted=False).tokens)
        except AstraFlowError as error:
            raise PreflightError(f"a request of one token failed: {error}") from error
        if count != 1 and backend.texts is None:
            raise PreflightError(
                f"the server at {self._config.url} returned {count} token ids where one was asked for: "
                "it does not support `return_token_ids`; set tokens = 'text'"
            )
        backend.tokens = 0

    async def score(self, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        """A request like others, which needs ``tokens = "ids"`` and a server that knows vLLM's
        ``prompt_logprobs``. One token is sampled after those that are scored."""
        if self._running.texts is not None:
            raise UserError("engine 'openai' can score only with tokens = 'ids'")
        return await super().score(tokens)

    async def pause(self, mode: PauseMode) -> None:
        """Hold back what comes, then drain or end what runs. A server that is not ours cannot be frozen."""
        if mode == "keep":
            raise UserError("engine 'openai' lacks the capability 'pause.keep'")
        await super().pause(mode)

    async def load_weights(self, source: WeightSource) -> None:
        """A frozen model has none to load, paused or not."""
        await self._running.load(source)
