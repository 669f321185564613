"""The routes by which an SGLang server samples, scores, stops and changes its weights."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from astraflow_core.errors import AstraFlowError
from astraflow_core.protocols.engine import PauseMode
from astraflow_core.serving.desk import Flight
from astraflow_core.serving.differences import what_differs
from astraflow_core.serving.model_folder import ModelFolder
from astraflow_core.serving.server_backend import Patience, Server, ServerBackend, Version
from astraflow_core.types import GenerateResult
from astraflow_plugin_sglang import generation
from astraflow_plugin_sglang.config import SGLangConfig
from astraflow_plugin_sglang.routes import ROUTES, version_of
from astraflow_plugin_sglang.server import LABEL
from astraflow_plugin_sglang.updates import Update, update_of

WRITTEN_FOR = "0.5.23"


class SGLangBackend(ServerBackend):
    """Follows each answer token by token, so it knows itself what was sampled."""

    def __init__(self, server: Server, config: SGLangConfig, folder: ModelFolder) -> None:
        others = [url for url in config.urls if config.router is not None and url != server.url]
        super().__init__(
            "sglang",
            LABEL,
            server,
            folder,
            config.max_batch,
            config.context_length or folder.config.positions,
            Patience(config.control_deadline_s, config.stall_deadline_s),
            config.router,
            others,
        )
        self._keep = config.keep
        self._update: Update = update_of(self.client, config, folder)

    async def begin(self) -> None:
        """End what the server does, and load version 0."""
        version = await version_of(self.client)
        if version != WRITTEN_FOR:
            self.log.warning(
                "SGLang %s is not the version that this engine was written for, %s: %s; run the conformance suite of "
                "astraflow-plugin-sglang against it",
                version or "of a version that it does not say",
                WRITTEN_FOR,
                await what_differs(self.client, ROUTES),
            )
        await self.client.post("/pause_generation", {"mode": "abort"})
        await self._update.prepare()
        await self.bring(self.loaded)
        await self.client.post("/continue_generation", {})
        self.watch()

    async def ask_sample(self, flight: Flight) -> GenerateResult:
        """Follow an answer; once a stop is complete the server is told to end."""
        sampled = generation.Sampled(flight.request, self.folder.config.eos)
        body = generation.body_of(flight.identifier, flight.request)
        asked = False
        client, headers = self.routes.client(flight.request), self.routes.headers(flight.request)
        try:
            async with contextlib.aclosing(client.events(generation.PATH, body, headers)) as events:
                async for event in events:
                    before = sampled.count
                    sampled.take(event)
                    self.tokens += sampled.count - before
                    if sampled.stopped and sampled.finish is None and not asked:
                        asked = True
                        await self.end([flight])
        except asyncio.CancelledError:
            # Closing the connection would be enough if nothing stood between us.
            with contextlib.suppress(AstraFlowError):
                await asyncio.shield(self._tell_end(flight))
            raise
        return sampled.result()

    async def ask_score(
        self, identifier: str, tokens: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.float32]:
        """Raw log-probs of ``tokens``."""
        body = generation.body_of_score(identifier, tokens)
        answer = await self.client.ask(generation.PATH, body)
        return generation.read_scores(answer, tokens)

    async def halt(self, mode: PauseMode) -> None:
        """The mode is always named: SGLang's own default aborts."""
        name = "abort" if mode == "abort" else self._keep
        await self.control("/pause_generation", {"mode": name})

    async def go_on(self) -> None:
        """Undo :meth:`halt`."""
        await self.control("/continue_generation", {})

    async def end(self, flights: Sequence[Flight]) -> None:
        """One call for each, to every server that may run it."""
        for flight in flights:
            await self.control("/abort_request", {"rid": flight.identifier})
            await self.routes.tell_others("/abort_request", {"rid": flight.identifier})

    async def _tell_end(self, flight: Flight) -> None:
        await self.client.post("/abort_request", {"rid": flight.identifier})
        await self.routes.tell_others("/abort_request", {"rid": flight.identifier})

    async def bring(self, version: Version) -> None:
        """Requests that are frozen in place hold their keys and values, so the cache can be flushed only if
        there are none."""
        held = bool(self.desk.running) and self._keep == "in_place"
        await self._update.load(version, flush=not held)

    async def progress(self) -> float:
        """As counted here."""
        return self.tokens

    async def close(self) -> None:
        """End requests and connections, then the server if it is ours."""
        await self._update.close()
        await super().close()
