"""A server in use: its requests, its version, its life."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import tempfile
import uuid
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from astraflow_core.errors import AstraFlowError, EngineLost, WeightsError, WrongVersion
from astraflow_core.serving.desk import Desk, Flight
from astraflow_core.serving.model_folder import ModelFolder
from astraflow_core.types import GenerateResult
from astraflow_plugin_sglang import generation
from astraflow_plugin_sglang.client import Client, ServerRefused, ServerSilent
from astraflow_plugin_sglang.config import SGLangConfig

log = logging.getLogger("astraflow.sglang")
UPDATE = "/update_weights_from_disk"
T = TypeVar("T")
_END_S = 2.0


@dataclass(frozen=True, slots=True)
class Version:
    """The files of a version, and its number."""

    number: int
    files: tuple[Path, ...]


class Session:
    """Between start and close. ``name`` is unique; ``version`` is what the server has; ``paused`` is the
    server's state as we left it; ``tokens`` and ``prompt_tokens`` count."""

    def __init__(self, config: SGLangConfig, folder: ModelFolder) -> None:
        self.name = uuid.uuid4().hex[:12]
        self.folder = folder
        self.context_length = config.context_length or folder.config.positions
        self.desk = Desk(config.max_batch)
        self.version = Version(0, folder.files)
        self.paused = False
        self.tokens = 0
        self.prompt_tokens = 0
        self._keep = config.keep
        self._stall_s = config.stall_deadline_s
        self._client = Client(config.url, config.control_deadline_s)
        self._watch: asyncio.Task[None] | None = None
        self._work: set[asyncio.Future[Any]] = set()
        self._lost: EngineLost | None = None
        self._ended = False

    async def begin(self) -> None:
        """Make sure that the server is there, end what it does, and load version 0."""
        await self._client.get("/health")
        await self._client.post("/pause_generation", {"mode": "abort"})
        await self._load(self.version)
        await self._client.post("/continue_generation", {})
        self._watch = asyncio.create_task(self._watch_progress())

    def begun(self, flight: Flight) -> None:
        """A request goes to the server. Raises :class:`WrongVersion` if it must not."""
        if flight.request.pinned_version not in (None, self.version.number):
            raise wrong_version(flight, self.version.number)
        self.prompt_tokens += len(flight.request.prompt)

    async def sample(self, flight: Flight) -> GenerateResult:
        """The server's answer."""
        return await self._while_it_lasts(self._follow(flight))

    async def _while_it_lasts(self, answer: Coroutine[Any, Any, T]) -> T:
        """An answer, or why there will be none."""
        work = asyncio.ensure_future(answer)
        self._work.add(work)
        try:
            return await work
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise self._lost or RuntimeError("engine 'sglang' was closed") from None
        finally:
            self._work.discard(work)

    async def _follow(self, flight: Flight) -> GenerateResult:
        """Follow an answer token by token; once a stop is complete the server is told to end."""
        sampled = generation.Sampled(flight.request, self.folder.config.eos)
        body = generation.body_of(flight.identifier, flight.request)
        asked = False
        try:
            async with contextlib.aclosing(self._client.events(generation.PATH, body)) as events:
                async for event in events:
                    before = sampled.count
                    sampled.take(event)
                    self.tokens += sampled.count - before
                    if sampled.stopped and sampled.finish is None and not asked:
                        asked = True
                        await self.end_at_server(flight)
        except asyncio.CancelledError:
            # Closing the connection would be enough if nothing stood between us.
            with contextlib.suppress(AstraFlowError):
                await asyncio.shield(self.end_at_server(flight))
            raise
        return sampled.result()

    async def end_at_server(self, flight: Flight) -> None:
        """Have one request ended."""
        await self._client.post("/abort_request", {"rid": flight.identifier})

    async def score(self, flight: Flight, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        """Raw log-probs of ``tokens``."""
        body = generation.body_of_score(flight.identifier, tokens)
        answer = await self._while_it_lasts(self._client.ask(generation.PATH, body))
        return generation.read_scores(answer, tokens)

    async def halt(self, keep: bool) -> None:
        """Stop the server, its requests kept or ended. The mode is always named: the default aborts."""
        await self.post("/pause_generation", {"mode": self._keep if keep else "abort"})
        self.paused = True

    async def go_on(self) -> None:
        """Undo :meth:`halt`."""
        await self.post("/continue_generation", {})
        self.paused = False

    async def replace(self, version: Version) -> None:
        """Load a version. If the server refuses it, load the one before again and raise
        :class:`WeightsError`; if that fails too, nobody can say what it holds: :class:`EngineLost`."""
        try:
            await self._load(version)
        except ServerRefused as error:
            log.warning("SGLang refused version %d: %s", version.number, error)
            try:
                await self._load(self.version)
            except AstraFlowError as again:
                raise self._give_up(
                    f"SGLang refused version {version.number} ({error}) and then version "
                    f"{self.version.number}, which it had ({again})"
                ) from again
            raise WeightsError(
                f"SGLang refused version {version.number}, version {self.version.number} is loaded "
                f"again: {error}"
            ) from error
        except AstraFlowError as error:
            raise self._give_up(
                f"nobody can say what SGLang holds after version {version.number}: {error}"
            ) from error
        self.version = version

    async def _load(self, version: Version) -> None:
        """Lay out a folder of links like the model's, and have it read. Requests that are frozen in place
        hold their keys and values, so the cache can be flushed only if there are none."""
        folder = Path(tempfile.mkdtemp(prefix="astraflow-sglang-"))
        try:
            for file in self.folder.path.iterdir():
                if not file.name.endswith((".safetensors", ".safetensors.index.json")):
                    os.symlink(file.resolve(), folder / file.name)
            for number, file in enumerate(version.files):
                os.symlink(file.resolve(), folder / f"model-{number}.safetensors")
            held = bool(self.desk.running) and self._keep == "in_place"
            answer = await self._client.post(
                UPDATE,
                {
                    "model_path": str(folder),
                    "weight_version": str(version.number),
                    "abort_all_requests": False,
                    "flush_cache": not held,
                    "keep_pause": True,
                },
            )
        finally:
            shutil.rmtree(folder)
        if not json.loads(answer).get("success"):
            raise ServerRefused(f"{UPDATE}: {answer[:500]!r}")

    async def post(self, path: str, body: Mapping[str, Any]) -> None:
        """A call of control."""
        try:
            await self._client.post(path, body)
        except (ServerSilent, ServerRefused) as error:
            raise await self.explain(error) from error

    async def explain(self, error: ServerSilent | ServerRefused) -> Exception:
        """What to raise instead: :class:`EngineLost` if the server is gone."""
        if self._ended:
            return RuntimeError("engine 'sglang' was closed")
        if self._lost is not None:
            return self._lost
        if isinstance(error, ServerSilent):
            try:
                await self._client.get("/health")
            except AstraFlowError:
                return self._give_up(f"the SGLang server is gone: {error}")
        return error

    def _give_up(self, reason: str) -> EngineLost:
        """Have nothing more to do with a server that cannot be trusted; who waits is told why."""
        if self._lost is None:
            self._lost = EngineLost(reason)
            self.desk.close()
            self.desk.fail(self._lost)
            for work in self._work:
                work.cancel()
        return self._lost

    async def _watch_progress(self) -> None:
        """Give a server up that runs requests and samples nothing."""
        seen, since = -1, 0.0
        while True:
            await asyncio.sleep(self._stall_s / 10)
            if self.paused or not self.desk.is_open or not self.desk.running:
                seen = -1
                continue
            since = since + self._stall_s / 10 if self.tokens == seen else 0.0
            seen = self.tokens
            if since >= self._stall_s:
                running = len(self.desk.running)
                self._give_up(f"SGLang sampled nothing for {since:.0f} s with {running} requests")
                return

    async def end(self) -> None:
        """End our requests and connections; the server goes on."""
        self._ended = True
        if self._watch is not None:
            self._watch.cancel()
        self.desk.close()
        self.desk.fail(RuntimeError("engine 'sglang' was closed"))
        work = list(self._work)
        for answer in work:
            answer.cancel()
        if work:
            await asyncio.wait(work, timeout=_END_S)  # the server is told of each
        await self._client.close()


def wrong_version(flight: Flight, served: int) -> WrongVersion:
    """For a request that is pinned to another version."""
    request = flight.request
    return WrongVersion(
        f"request {request.id!r} is pinned to version {request.pinned_version}; version {served} is served"
    )
