"""The routes by which a vLLM server samples, scores, stops and changes its weights."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt

from astraflow_core.errors import AstraFlowError, PreflightError, WireError
from astraflow_core.protocols.engine import PauseMode
from astraflow_core.types import GenerateResult, Images, WeightSource
from astraflow_plugin_vllm import requests
from astraflow_plugin_vllm.adapters import NamedAdapters, ServerAdapters
from astraflow_plugin_vllm.config import NO_DRAFTS, VllmConfig
from astraflow_plugin_vllm.images import RequestImages, features_of
from astraflow_plugin_vllm.metrics import DRAFTED, SAMPLED, metrics
from astraflow_plugin_vllm.routes import ROUTES
from astraflow_plugin_vllm.server import LABEL
from astraflow_plugin_vllm.updates import Reload, TransferUpdate, VersionUpdate, receive
from astraflow_serving.buckets import Bucket
from astraflow_serving.desk import Flight
from astraflow_serving.differences import what_differs
from astraflow_serving.engine import end_requests
from astraflow_serving.http import ServerClient, ServerRefused, ServerSilent
from astraflow_serving.model_folder import ModelFolder
from astraflow_serving.server_backend import ModelServer, ServerBackend, ServerTimeouts, Version
from astraflow_serving.tokens import first_stop, long_stops
from astraflow_wire.decoding import from_json

PROVED = "0.32."


class _Version(msgspec.Struct):
    version: str


class _Served(msgspec.Struct):
    """A model of the list; adapters over it follow, without a length."""

    max_model_len: Annotated[int, msgspec.Meta(gt=0)] | None = None


class _Models(msgspec.Struct):
    data: Annotated[list[_Served], msgspec.Meta(min_length=1)]


class VllmBackend(ServerBackend):
    """``slept`` is the level at which the server sleeps, 0 if it is awake. An adapter lies over the last whole
    version."""

    def __init__(
        self,
        server: ModelServer,
        config: VllmConfig,
        folder: ModelFolder,
        context_length: int,
        images: RequestImages,
    ) -> None:
        timeouts = ServerTimeouts(config.control_deadline_s, config.stall_deadline_s)
        others = [url for url in config.urls if config.router is not None and url != server.url]
        super().__init__(
            "vllm", LABEL, server, folder, config.max_batch, context_length, timeouts,
            config.router, others,
        )  # fmt: skip
        self.slept = 0
        self.images = images
        self._whole = self.loaded
        self._session = uuid.uuid4().hex[:12]
        self._update: VersionUpdate = (
            TransferUpdate(self.client, config.chunk_mb << 20)
            if config.update == "transfer"
            else Reload(self.client, folder)
        )
        self._adapters = (
            None
            if config.lora_rank is None
            else ServerAdapters(self.client, folder, self._session, config.lora_rank)
        )
        self.named = (
            None
            if self._adapters is None or not config.named_adapters
            else NamedAdapters(self._adapters, config.named_adapters)
        )
        self._sampled_before = 0.0
        self._scored = 0

    async def begin(self, fresh: bool) -> None:
        """Make the server ready for requests at version 0. A server that is not ``fresh`` may have other
        weights and other requests."""
        version = await version_of(self.client)
        if not version.startswith(PROVED):
            self.log.warning(
                "vLLM %s is not tested with this engine, only %sx: %s; run the conformance suite of "
                "astraflow-plugin-vllm against it",
                version,
                PROVED,
                await what_differs(self.client, ROUTES),
            )
        if not fresh:
            await self.client.post("/pause?mode=abort&clear_cache=true")
        await self._update.prepare()
        try:
            if fresh:
                await self.client.post("/update_weight_version", {"new_version": "0"})
            else:
                await self._update.load(self.loaded)
            if self._adapters is not None:
                await self._adapters.begin()
        except ServerRefused as error:
            raise PreflightError(
                f"the vLLM server does not take the weights of {self.folder.path}; was it started on "
                f"another model? {error}"
            ) from error
        if not fresh:
            await self.client.post("/resume")
        found = await metrics(self.client)
        if any(name.startswith(DRAFTED) for name in found):
            raise PreflightError(f"the vLLM server was started with drafts: {NO_DRAFTS}")
        self._sampled_before = found.get(SAMPLED, 0.0)
        self.watch()

    def _name(self, identifier: str) -> str:
        return f"{self._session}-{identifier}"

    async def ask_sample(self, flight: Flight) -> GenerateResult:
        """Stop sequences of several tokens are looked for here, in a stream."""
        request = flight.request
        stops = long_stops(request.sampling)
        items = await self.images.packed(request.prompt, request.images)
        # A prefix cached under one version is never read under another, even while requests that a
        # pause had frozen keep the cache from being reset.
        salt = self._salt
        client, headers = self.routes.client(request), self.routes.headers(request)
        if client is not self.client:  # a server of whose version nothing is known here
            salt = self._name(flight.identifier)
        body = requests.body_of(
            self._name(flight.identifier),
            request,
            self.folder.config.eos,
            salt,
            bool(stops),
            request.adapter or self._adapter,
            features_of(request.images, items, salt),
        )
        sampled = requests.SampledPieces(request)
        if not stops:
            sampled.take(await client.ask(requests.PATH, body, headers))
            return sampled.result()
        cut = None
        async for event in client.events(requests.PATH, body, headers):
            before = len(sampled.tokens)
            sampled.take(event)
            if cut is None:
                cut = first_stop(sampled.tokens, before, stops)
                if cut is not None and sampled.reason is None:
                    await self.end([flight])
        return sampled.result(cut)

    @property
    def _adapter(self) -> str | None:
        return None if self._adapters is None else self._adapters.name

    @property
    def _salt(self) -> str:
        return f"{self._session}.{self.version}"

    async def ask_score(
        self, identifier: str, tokens: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.float32]:
        """Raw log-probs of ``tokens``."""
        return await self._ask_score(identifier, tokens, (), self._adapter)

    async def score_adapter(
        self, identifier: str, tokens: npt.NDArray[np.int32], adapter: str
    ) -> npt.NDArray[np.float32]:
        """As :meth:`score`, with an adapter by its name at the server."""
        return await self.while_it_lasts(self._ask_score(identifier, tokens, (), adapter))

    async def score_images(
        self, identifier: str, tokens: npt.NDArray[np.int32], images: Images
    ) -> npt.NDArray[np.float32]:
        """As :meth:`score`, of tokens with images."""
        return await self.while_it_lasts(self._ask_score(identifier, tokens, images, self._adapter))

    async def _ask_score(
        self,
        identifier: str,
        tokens: npt.NDArray[np.int32],
        images: Images,
        adapter: str | None,
    ) -> npt.NDArray[np.float32]:
        items = await self.images.packed(tokens, images)
        features = features_of(images, items, self._salt)
        body = requests.body_of_score(self._name(identifier), tokens, adapter, features)
        answer = await self.client.ask(requests.PATH, body)
        self._scored += 1
        return requests.read_scores(answer, tokens)

    async def halt(self, mode: PauseMode) -> None:
        """The mode is always named: vLLM's own default aborts."""
        await self.control(f"/pause?mode={mode}&clear_cache=false")

    async def go_on(self) -> None:
        """Let the scheduler run."""
        await self.control("/resume")

    async def end(self, flights: Sequence[Flight]) -> None:
        """By the names that the server gives them."""
        names = [requests.external_id(self._name(flight.identifier)) for flight in flights]
        await self.control("/abort_requests", {"request_ids": names})
        await self.routes.tell_others("/abort_requests", {"request_ids": names})

    async def load(self, source: WeightSource) -> None:
        """A whole version, or an adapter for the one that is loaded whole. Adapters that requests name end."""
        if self._adapters is None or source.kind == "full":
            await super().load(source)
            self._whole = self.loaded
            if self._adapters is not None:
                self._adapters.rebase(source.digest)
        else:
            await asyncio.to_thread(self._adapters.check, source)
            await self.replace(Version(source.version, (source.path,), source.kind))
        await self._end_named()

    async def _end_named(self) -> None:
        if self.named is None:
            return
        flights = [flight for flight in self.desk.running if flight.request.adapter]
        for flight in flights:
            flight.superseded = True
        await self.named.clear()
        await end_requests(self, flights)

    async def bring(self, version: Version) -> None:
        """By the protocol that the key ``update`` names; adapters by their own."""
        if version.buckets:
            await receive(self.client, version)
        elif not version.files:
            raise AstraFlowError(
                f"version {version.number} was received from the trainer's GPU, and cannot be loaded again"
            )
        elif version.kind == "full":
            await self._update.load(version)
        else:
            assert self._adapters is not None
            await self._adapters.bring(version.number, version.files[0])
        if version.kind == "full" and self._adapters is not None:
            await self._adapters.reset()

    async def receive(self, version: int, buckets: Sequence[Bucket]) -> None:
        """A whole version from the trainer's GPU, under the rules of :meth:`load`."""
        tensors = {spec.name: spec for bucket in buckets for spec in bucket.tensors}
        self.folder.check_specs(f"version {version}", tensors)
        await self.replace(Version(version, (), buckets=tuple(buckets)))
        self._whole = self.loaded
        if self._adapters is not None:
            self._adapters.rebase("")
        await self._end_named()

    async def progress(self) -> float:
        """As the servers count that may run requests of ours. Another replica's that is gone runs none."""
        own, *others = self.routes.servers
        sampled = (await metrics(own)).get(SAMPLED, 0.0)
        for client in others:
            with contextlib.suppress(AstraFlowError):
                sampled += (await metrics(client)).get(SAMPLED, 0.0)
        return sampled

    async def close(self) -> None:
        """As of every server; adapters have files."""
        await super().close()
        if self.named is not None:
            self.named.close()

    async def sleep(self, level: int) -> None:
        """Give memory back; what runs ends with what it has."""
        await self.control(f"/sleep?level={level}&mode=abort")
        self.paused, self.slept = True, level

    async def wake(self) -> None:
        """Weights first, loaded again after level 2; then room for keys and values. Waking resumes the
        scheduler, so it is paused again."""
        await self.control("/wake_up?tags=weights")
        if self.slept == 2:
            await self.bring(self._whole)
            if self.loaded.kind == "adapter":
                await self.bring(self.loaded)
        await self.control("/wake_up?tags=kv_cache")
        self.slept = 0
        await self.halt("keep")

    async def gauges(self) -> dict[str, float]:
        """Beside those of the protocol: ``kv_cache_usage`` (a share), ``preemptions``."""
        try:
            found = await metrics(self.client)
        except (ServerSilent, ServerRefused) as error:
            raise await self.explain(error) from error
        self.tokens = int(found.get(SAMPLED, 0.0) - self._sampled_before - self._scored)
        return {
            **await super().gauges(),
            "kv_cache_usage": found.get("kv_cache_usage_perc", 0.0),
            "preemptions": found.get("num_preemptions_total", 0.0),
        }


async def context_length(client: ServerClient) -> int:
    """Of the model that a server serves. Raises :class:`WireError` if it answers like no vLLM."""
    path = "/v1/models"
    served = from_json(await client.get(path), _Models, f"{client.url}{path}").data[0]
    if served.max_model_len is None:
        raise WireError(f"{client.url}{path}: the first model has no max_model_len")
    return served.max_model_len


async def version_of(client: ServerClient) -> str:
    """What vLLM it is. Raises :class:`WireError` if it answers like none."""
    path = "/version"
    return from_json(await client.get(path), _Version, f"{client.url}{path}").version
