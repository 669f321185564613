"""The routes by which an SGLang server samples, scores, stops and changes its weights."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from astraflow_core.errors import AstraFlowError, DeadlineExceeded, PreflightError, WeightsError
from astraflow_core.protocols.engine import PauseMode
from astraflow_core.types import GenerateResult, Images
from astraflow_plugin_sglang import demands, generation
from astraflow_plugin_sglang.config import SGLangConfig
from astraflow_plugin_sglang.following import Following
from astraflow_plugin_sglang.images import ImageFiles
from astraflow_plugin_sglang.routes import ROUTES, server_info
from astraflow_plugin_sglang.server import LABEL
from astraflow_plugin_sglang.updates import FromDisk, ServerUpdate, end_session
from astraflow_serving.desk import Flight
from astraflow_serving.differences import what_differs
from astraflow_serving.http import ServerClient, ServerRefused, ServerSilent
from astraflow_serving.model_folder import ModelFolder
from astraflow_serving.server_backend import ModelServer, ServerBackend, ServerTimeouts, Version

WRITTEN_FOR = "0.5.23"


class SGLangBackend(ServerBackend):
    """Follows each answer token by token, so it knows itself what was sampled."""

    def __init__(
        self, server: ModelServer, config: SGLangConfig, folder: ModelFolder, images: ImageFiles
    ) -> None:
        others = [url for url in config.urls if config.router is not None and url != server.url]
        super().__init__(
            "sglang",
            LABEL,
            server,
            folder,
            config.max_batch,
            config.context_length or folder.config.positions,
            ServerTimeouts(config.control_deadline_s, config.stall_deadline_s),
            config.router,
            others,
        )
        self.images = images
        self._keep = config.keep
        self._flush_s = config.control_deadline_s / 2
        self._update: ServerUpdate = _update_of(self.client, config, folder)
        self._asked: dict[str, Following] = {}

    async def begin(self) -> None:
        """End what the server does, and load version 0."""
        info = await server_info(self.client)
        if info.get("version") != WRITTEN_FOR:
            self.log.warning(
                "SGLang %s is not the version that this engine was written for, %s: %s; run the conformance suite of "
                "astraflow-plugin-sglang against it",
                info.get("version") or "of a version that it does not say",
                WRITTEN_FOR,
                await what_differs(self.client, ROUTES),
            )
        demands.check(info, self._keep, self.server.url)
        if isinstance(longest := info.get("max_req_input_len"), int):
            # SGLang reserves some tokens of the context, so a prompt has to be shorter.
            self.context_length = min(self.context_length, longest)
        await self._take_over()
        await self._update.prepare()
        await self.bring(self.loaded)
        await self.client.post("/continue_generation", {})
        self.watch()

    async def _take_over(self) -> None:
        """Requests that another client left frozen end only once they continue, and a pause that aborts waits for
        them."""
        try:
            await self.client.post("/abort_request", {"abort_all": True})
            await self.client.post("/continue_generation", {})
            await self.client.post("/pause_generation", {"mode": "abort"})
        except DeadlineExceeded as error:
            raise PreflightError(
                f"the SGLang server at {self.server.url} is running, but can be neither continued nor paused ({error}): "
                "a pause of mode abort while requests are frozen causes this, permanently; restart it"
            ) from error
        await end_session(self.client)
        if self._keep == "retract":
            # Nothing comes, so it is idle as soon as its last pass is over.
            await self.client.post(f"/flush_cache?timeout={self._flush_s:g}")

    async def ask_sample(self, flight: Flight) -> GenerateResult:
        """Follow an answer; once a stop sequence is complete the server is asked to end it."""
        client, headers = self.routes.client(flight.request), self.routes.headers(flight.request)
        since = self.version if client is self.client else None
        sampled = generation.SampledStream(flight.request, self.folder.config.eos, since)
        body = generation.body_of(flight.identifier, flight.request)
        with self._following(flight.identifier) as following:
            try:
                async with contextlib.aclosing(
                    client.events(generation.PATH, body, headers)
                ) as events:
                    async for event in events:
                        following.begun = True
                        before = sampled.count
                        sampled.take(event)
                        self.tokens += sampled.count - before
                        if sampled.stopped and sampled.finish is None:
                            await self._end(flight.identifier)
            except asyncio.CancelledError:
                # Closing the connection would be enough if nothing stood between us.
                with contextlib.suppress(AstraFlowError):
                    await asyncio.shield(self._finish_request(flight.identifier))
                if not following.was_left():
                    raise
                return sampled.partial()
        return sampled.result()

    async def ask_score(
        self, identifier: str, tokens: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.float32]:
        """Raw log-probs of ``tokens``."""
        return await self._ask_score(identifier, tokens, ())

    async def score_images(
        self, identifier: str, tokens: npt.NDArray[np.int32], images: Images
    ) -> npt.NDArray[np.float32]:
        """As :meth:`score`, of tokens with images."""
        return await self.while_it_lasts(self._ask_score(identifier, tokens, images))

    async def _ask_score(
        self, identifier: str, tokens: npt.NDArray[np.int32], images: Images
    ) -> npt.NDArray[np.float32]:
        body = generation.body_of_score(identifier, tokens, images, self.images.token)
        with self._following(identifier) as following:
            try:
                answer = await self.client.ask(generation.PATH, body)
            except asyncio.CancelledError:
                with contextlib.suppress(AstraFlowError):
                    await asyncio.shield(self._finish_request(identifier))
                if not following.was_left():
                    raise
                raise AstraFlowError("a score was aborted before it ended") from None
        return generation.read_scores(answer, tokens, self.vocabulary, images)

    @contextlib.contextmanager
    def _following(self, identifier: str) -> Iterator[Following]:
        following = self._asked[identifier] = Following()
        try:
            yield following
        finally:
            del self._asked[identifier]

    async def halt(self, mode: PauseMode) -> None:
        """In each mode as the key ``keep`` says: what shall end is ended afterwards (:meth:`end`). SGLang's own mode
        ``abort`` waits for requests to end, and frozen ones never do. It answers before its scheduler has stopped,
        which the second call waits for."""
        await self.control("/pause_generation", {"mode": self._keep})
        try:
            await server_info(self.client)
        except (ServerSilent, ServerRefused) as error:
            raise await self.explain(error) from error

    async def go_on(self) -> None:
        """Undo :meth:`halt`."""
        await self.control("/continue_generation", {})

    async def end(self, flights: Sequence[Flight]) -> None:
        """Of each, in the way that leads to an end now."""
        for flight in flights:
            await self._end(flight.identifier)

    async def _end(self, identifier: str) -> None:
        """A request that samples is ended by the server, which answers with all that it has. One that is frozen would
        end only when it continues; and one that has not begun may not have reached the scheduler, in which case the
        server forgets the abort, and accepts no second one. Those are left: SGLang ends requests without a reader."""
        following = self._asked.get(identifier)
        if following is None:
            return  # about to ask, or just answered
        if self.paused or not following.begun:
            following.leave()
        elif not following.told:
            following.told = True
            await self.control("/abort_request", {"rid": identifier})
            await self.routes.tell_others("/abort_request", {"rid": identifier})

    async def _finish_request(self, identifier: str) -> None:
        await self.client.post("/abort_request", {"rid": identifier})
        await self.routes.tell_others("/abort_request", {"rid": identifier})

    async def replace(self, version: Version) -> None:
        """Flush before anything changes. Only ``retract`` has a cache, and frees all of it."""
        if self._keep == "retract":
            try:
                await self.client.post("/flush_cache")
            except ServerRefused as error:
                raise WeightsError(
                    f"{LABEL} does not flush its cache, so version {self.version} stays: {error}"
                ) from error
            except ServerSilent as error:
                raise await self.explain(error) from error
        await super().replace(version)

    async def bring(self, version: Version) -> None:
        """Bring the weights to the server in the way that the key ``update`` names."""
        await self._update.load(version)

    async def progress(self) -> float:
        """The counts of this engine."""
        return self.tokens

    async def close(self) -> None:
        """End requests and connections, then the server if it is ours."""
        await self._update.close()
        await super().close()


def _update_of(client: ServerClient, config: SGLangConfig, folder: ModelFolder) -> ServerUpdate:
    """As the key ``update`` says."""
    if config.update == "disk":
        return FromDisk(client, folder)
    # Only these need torch in our own process.
    from astraflow_plugin_sglang import sharing

    kind = sharing.FromTensors if config.update == "tensor" else sharing.FromBroadcast
    return kind(client, config.tensor_parallel, config.chunk_mb << 20)
