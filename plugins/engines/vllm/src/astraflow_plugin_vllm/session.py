"""A server in use: its requests, its version, its life."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from astraflow_core.errors import AstraFlowError, EngineLost, WeightsError, WrongVersion
from astraflow_core.serving.desk import Desk, Flight
from astraflow_core.serving.model_folder import ModelFolder
from astraflow_core.types import GenerateResult
from astraflow_plugin_vllm import requests
from astraflow_plugin_vllm.client import Client, ServerRefused, ServerSilent
from astraflow_plugin_vllm.config import VllmConfig
from astraflow_plugin_vllm.server import Server
from astraflow_plugin_vllm.updates import Reload, Transfer, Update, Version

log = logging.getLogger("astraflow.vllm")
PROVED = "0.32."
_SAMPLED = "generation_tokens_total"


class Session:
    """Between a server's start and its end. ``name`` is unique; ``version`` is what the server has;
    ``paused`` and ``slept`` (the level) are the server's state as we left it."""

    def __init__(self, server: Server, config: VllmConfig, folder: ModelFolder) -> None:
        self.name = uuid.uuid4().hex[:12]
        self.folder = folder
        self.desk = Desk(config.max_batch)
        self.version = Version(0, folder.files)
        self.context_length = 0
        self.paused = False
        self.slept = 0
        self._server = server
        self._client = Client(server.url, config.control_deadline_s)
        self.update: Update = (
            Transfer(self._client, config.chunk_mb << 20)
            if config.update == "transfer"
            else Reload(self._client, folder)
        )
        self._stall_s = config.stall_deadline_s
        self._watch: asyncio.Task[None] | None = None
        self._lost: EngineLost | None = None
        self._ended = False
        self._sampled_before = 0.0
        self._scored = 0
        self._prompt_tokens = 0

    async def begin(self, fresh: bool) -> None:
        """Make the server ready for requests at version 0. A server that is not ``fresh`` may have other
        weights and other requests."""
        version = json.loads(await self._client.get("/version"))["version"]
        if not version.startswith(PROVED):
            log.warning(
                "vLLM %s is not proved with this engine, %sx is: the routes for weights and for token "
                "ids may differ; run the conformance suite of astraflow-plugin-vllm against it",
                version,
                PROVED,
            )
        (served,) = json.loads(await self._client.get("/v1/models"))["data"][:1]
        self.context_length = int(served["max_model_len"])
        if not fresh:
            await self._client.post("/pause?mode=abort&clear_cache=true")
        await self.update.prepare()
        if fresh:
            await self._client.post("/update_weight_version", {"new_version": "0"})
        else:
            await self.update.load(self.version)
            await self._client.post("/resume")
        self._sampled_before = (await self._client.metrics()).get(_SAMPLED, 0.0)
        self._watch = asyncio.create_task(self._watch_progress())

    def begun(self, flight: Flight) -> None:
        """A request goes to the server. Raises :class:`WrongVersion` if it must not."""
        pinned = flight.request.pinned_version
        if pinned not in (None, self.version.number):
            raise wrong_version(flight, self.version.number)
        self._prompt_tokens += len(flight.request.prompt)

    async def sample(self, flight: Flight) -> GenerateResult:
        """The server's answer. Stop sequences of several tokens are looked for here, in a stream."""
        request = flight.request
        stops = [stop for stop in request.sampling.stop_sequences if len(stop) > 1]
        # A prefix cached under one version is never read under another, even while requests that a
        # pause had frozen keep the cache from being reset.
        salt = f"{self.name}.{self.version.number}"
        body = requests.body_of(
            flight.identifier, request, self.folder.config.eos, salt, bool(stops)
        )
        sampled = requests.Sampled(request)
        if not stops:
            sampled.take(await self._client.ask(requests.PATH, body))
            return sampled.result()
        cut = None
        async for event in self._client.lines(requests.PATH, body):
            before = len(sampled.tokens)
            sampled.take(event)
            if cut is None:
                cut = requests.first_stop(sampled.tokens, before, stops)
                if cut is not None and sampled.reason is None:
                    ids = [requests.external_id(flight.identifier)]
                    await self._client.post("/abort_requests", {"request_ids": ids})
        return sampled.result(cut)

    async def score(self, flight: Flight, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        """Raw log-probs of ``tokens``."""
        body = requests.body_of_score(flight.identifier, tokens)
        answer = await self._client.ask(requests.PATH, body)
        self._scored += 1
        return requests.read_scores(answer, tokens)

    async def replace(self, version: Version) -> None:
        """Load a version. If the server refuses it, load the one before again and raise
        :class:`WeightsError`; if that fails too, nothing may be computed any more:
        :class:`EngineLost`."""
        try:
            await self.update.load(version)
        except ServerRefused as error:
            log.warning("vLLM refused version %d: %s", version.number, error)
            try:
                await self.update.load(self.version)
            except AstraFlowError as again:
                raise self._give_up(
                    f"vLLM refused version {version.number} ({error}) and then version "
                    f"{self.version.number}, which it had ({again})"
                ) from again
            raise WeightsError(
                f"vLLM refused version {version.number}, version {self.version.number} is loaded "
                f"again: {error}"
            ) from error
        except AstraFlowError as error:
            raise self._give_up(
                f"nobody can say what vLLM holds after version {version.number}: {error}"
            ) from error
        self.version = version

    async def post(self, path: str, body: Mapping[str, Any] | None = None) -> None:
        """A call of control."""
        try:
            await self._client.post(path, body)
        except (ServerSilent, ServerRefused) as error:
            raise await self.explain(error) from error

    async def explain(self, error: ServerSilent | ServerRefused) -> Exception:
        """What to raise instead: :class:`EngineLost` if the server is gone."""
        if self._ended:
            return RuntimeError("engine 'vllm' was closed")
        if self._lost is not None:
            return self._lost
        if isinstance(error, ServerRefused) and error.status < 500:
            return AstraFlowError(f"vLLM refused a request: {error}")
        reason = await self._server.why_gone()
        if reason is None:
            try:
                await self._client.get("/health")
                return error
            except AstraFlowError:
                reason = f"vLLM is gone: {error}"
        return self._give_up(reason)

    def _give_up(self, reason: str) -> EngineLost:
        """End a server that cannot be trusted any more; whatever waits ends with the reason."""
        if self._lost is None:
            self._lost = EngineLost(reason)
            self._server.kill()
            self.desk.fail(self._lost)
        return self._lost

    async def _watch_progress(self) -> None:
        """Give a server up that runs requests and samples nothing."""
        seen, since = -1.0, 0.0
        while True:
            await asyncio.sleep(self._stall_s / 10)
            if self.paused or not self.desk.is_open or not self.desk.running:
                seen = -1.0
                continue
            try:
                sampled = (await self._client.metrics()).get(_SAMPLED, 0.0)
            except AstraFlowError:
                sampled = seen
            since = since + self._stall_s / 10 if sampled == seen else 0.0
            seen = sampled
            if since >= self._stall_s:
                running = len(self.desk.running)
                self._give_up(f"vLLM sampled nothing for {since:.0f} s with {running} requests")
                await self._client.close()
                return

    async def gauges(self) -> dict[str, float]:
        """See ``Engine.health``."""
        found = await self._client.metrics()
        sampled = found.get(_SAMPLED, 0.0) - self._sampled_before - self._scored
        return {
            "running": float(len(self.desk.running)),
            "waiting": float(self.desk.waiting),
            "version": float(self.version.number),
            "tokens_generated": sampled,
            "prompt_tokens": float(self._prompt_tokens),
            "decode_seconds": self.desk.busy_s,
            "kv_cache_usage": found.get("kv_cache_usage_perc", 0.0),
            "preemptions": found.get("num_preemptions_total", 0.0),
        }

    async def end(self) -> None:
        """End requests, connections and the server."""
        self._ended = True
        if self._watch is not None:
            self._watch.cancel()
        self.desk.fail(RuntimeError("engine 'vllm' was closed"))
        await self._client.close()
        await self._server.stop()


def wrong_version(flight: Flight, served: int) -> WrongVersion:
    """For a request that is pinned to another version."""
    request = flight.request
    return WrongVersion(
        f"request {request.id!r} is pinned to version {request.pinned_version}; version {served} is served"
    )
