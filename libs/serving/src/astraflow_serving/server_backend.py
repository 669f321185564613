"""A server as the backend of an engine: its version, how a refused one is undone, and when it is lost."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from astraflow_core.errors import AstraFlowError, EngineLost, WeightsError
from astraflow_core.types import GenerateResult, WeightSource
from astraflow_core.types.weights import Kind
from astraflow_serving.buckets import Bucket
from astraflow_serving.desk import Flight
from astraflow_serving.engine import Backend
from astraflow_serving.http import ServerClient, ServerRefused, ServerSilent
from astraflow_serving.model_folder import ModelFolder
from astraflow_serving.routes import Routes

T = TypeVar("T")
_LOOKS = 10
_END_S = 2.0


class ModelServer(Protocol):
    """A server that runs; see :mod:`astraflow_serving.child_server`."""

    @property
    def url(self) -> str:
        """As :class:`astraflow_serving.http.ServerClient` takes it."""

    async def start(self) -> None:
        """Return when it answers; raises what a person can read."""

    async def why_gone(self) -> str | None:
        """Why it no longer answers, as far as known; ``None`` if it should."""

    def kill(self) -> None:
        """End it at once, if it is ours."""

    async def stop(self) -> None:
        """End it and free what it held, if it is ours."""


@dataclass(frozen=True, slots=True)
class Version:
    """The files of a version, its number and kind; or the buckets that bring it once."""

    number: int
    files: tuple[Path, ...]
    kind: Kind = "full"
    buckets: tuple[Bucket, ...] = ()


@dataclass(frozen=True, slots=True)
class ServerTimeouts:
    """Longest call of control, and longest time in which running requests may sample nothing."""

    control_s: float
    stall_s: float


class ServerBackend(Backend):
    """``label`` is what messages call the server, ``loaded`` the version that it holds. A server that
    has exited, hangs or holds unknown weights is given up: it is killed if we started it, and all
    requests end with :class:`EngineLost`. With a ``router`` requests run on the servers ``others`` too."""

    def __init__(
        self,
        name: str,
        label: str,
        server: ModelServer,
        folder: ModelFolder,
        max_batch: int,
        context_length: int,
        timeouts: ServerTimeouts,
        router: str | None = None,
        others: Sequence[str] = (),
    ) -> None:
        super().__init__(
            name, max_batch, context_length, folder.config.vocabulary, timeouts.control_s
        )
        self.label = label
        self.server = server
        self.folder = folder
        self.client = ServerClient(f"{label} server", server.url, timeouts.control_s)
        self.routes = Routes(self.client, label, timeouts.control_s, router, others)
        self.loaded = Version(0, folder.files)
        self.log = logging.getLogger(f"astraflow.{name}")
        self._stall_s = timeouts.stall_s
        self._watch: asyncio.Task[None] | None = None
        self._work: set[asyncio.Future[Any]] = set()
        self._lost: EngineLost | None = None
        self._ended = False

    @property
    def version(self) -> int:
        """The version of the weights that the server holds."""
        return self.loaded.number

    @abstractmethod
    async def ask_sample(self, flight: Flight) -> GenerateResult:
        """The server's answer to one request."""

    @abstractmethod
    async def ask_score(
        self, identifier: str, tokens: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.float32]:
        """The server's log-probs of ``tokens``."""

    @abstractmethod
    async def bring(self, version: Version) -> None:
        """Have the paused server replace its weights. Raises :class:`ServerRefused` if it did not take
        them, after which it may hold none that can be used."""

    @abstractmethod
    async def progress(self) -> float:
        """Tokens that it has sampled, as far as is known."""

    def watch(self) -> None:
        """Watch the server: give it up if it runs requests and samples nothing."""
        self._watch = asyncio.create_task(self._watch_progress())

    async def sample(self, flight: Flight) -> GenerateResult:
        """The server's answer, or why there will be none."""
        return await self.while_it_lasts(self.ask_sample(flight))

    async def score(
        self, identifier: str, tokens: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.float32]:
        """The server's answer, or why there will be none."""
        return await self.while_it_lasts(self.ask_score(identifier, tokens))

    async def while_it_lasts(self, answer: Coroutine[Any, Any, T]) -> T:
        """An answer of the server, or why there will be none."""
        work = asyncio.ensure_future(answer)
        self._work.add(work)
        try:
            return await work
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise self._lost or self._closed() from None
        except (ServerSilent, ServerRefused) as error:
            raise await self.explain(error) from error
        finally:
            self._work.discard(work)

    async def load(self, source: WeightSource) -> None:
        """Check a version against the model's folder, then bring it in. One that the server refuses all
        the same is replaced by the version before, which is why the engine has to be paused: nothing may be
        computed in between."""
        if source.kind != "full":
            raise WeightsError(f"engine {self.name!r} takes whole versions, not {source.kind}s")
        version = Version(source.version, (source.path,))
        await asyncio.to_thread(self.folder.check, version.files)
        await self.replace(version)

    async def replace(self, version: Version) -> None:
        """Load a version, or restore the previous one and raise :class:`WeightsError`; if that fails
        too, the engine must not compute anything: :class:`EngineLost`."""
        try:
            await self.bring(version)
        except ServerRefused as error:
            self.log.warning("%s refused version %d: %s", self.label, version.number, error)
            try:
                await self.bring(self.loaded)
            except AstraFlowError as again:
                raise await self._unknown(
                    f"{self.label} refused version {version.number} ({error}) and then version "
                    f"{self.version}, which it had ({again})"
                ) from again
            raise WeightsError(
                f"{self.label} refused version {version.number}, version {self.version} is loaded "
                f"again: {error}"
            ) from error
        except (ServerSilent, AstraFlowError) as error:
            raise await self._unknown(
                f"it is unknown what {self.label} holds after version {version.number}: {error}"
            ) from error
        self.loaded = replace(version, buckets=())

    async def _unknown(self, reason: str) -> EngineLost:
        gone = await self.server.why_gone()
        return self.give_up(reason if gone is None else f"{reason}; {gone}")

    async def control(self, path: str, body: Mapping[str, Any] | None = None) -> None:
        """A call of control."""
        try:
            await self.client.post(path, body)
        except (ServerSilent, ServerRefused) as error:
            raise await self.explain(error) from error

    async def explain(self, error: ServerSilent | ServerRefused) -> Exception:
        """What to raise instead: :class:`EngineLost` if the server is gone."""
        if self._ended:
            return self._closed()
        if self._lost is not None:
            return self._lost
        if isinstance(error, ServerRefused) and error.status < 500:
            return AstraFlowError(f"{self.label} refused a request: {error}")
        reason = await self.server.why_gone()
        if reason is None:
            try:
                await self.client.get("/health")
                return error
            except AstraFlowError:
                reason = f"the {self.label} server exited: {error}"
        return self.give_up(reason)

    def give_up(self, reason: str) -> EngineLost:
        """Give up a server in an unknown state; requests that wait fail with the reason."""
        if self._lost is None:
            self._lost = EngineLost(reason)
            self.server.kill()
            self.desk.close()
            self.desk.fail(self._lost)
            for work in self._work:
                work.cancel()
        return self._lost

    async def _watch_progress(self) -> None:
        seen, since, step = -1.0, 0.0, self._stall_s / _LOOKS
        while True:
            await asyncio.sleep(step)
            if self.paused or not self.desk.is_open or not self.desk.running:
                seen = -1.0
                continue
            try:
                sampled = await self.progress()
            except AstraFlowError:
                sampled = seen
            since = since + step if sampled == seen else 0.0
            seen = sampled
            if since >= self._stall_s:
                running = len(self.desk.running)
                self.give_up(
                    f"{self.label} sampled nothing for {since:.0f} s with {running} requests"
                )
                return

    def _closed(self) -> RuntimeError:
        return RuntimeError(f"engine {self.name!r} was closed")

    async def close(self) -> None:
        """End requests and connections, then the server if it is ours."""
        self._ended = True
        if self._watch is not None:
            self._watch.cancel()
        self.desk.close()
        self.desk.fail(self._closed())
        work = list(self._work)
        for answer in work:
            answer.cancel()
        if work:
            await asyncio.wait(work, timeout=_END_S)  # the server is notified of each
        await self.routes.close()
        await self.client.close()
        await self.server.stop()
