"""A model behind an OpenAI-compatible server, as the backend of an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

import numpy as np
import numpy.typing as npt

from astraflow_core.errors import AstraFlowError, WeightsError
from astraflow_core.protocols.engine import PauseMode
from astraflow_core.types import GenerateRequest, GenerateResult, WeightSource
from astraflow_plugin_openai import completions
from astraflow_plugin_openai.completions import (
    PendingCompletion,
    TextCompletion,
    Texts,
    TokenCompletion,
)
from astraflow_plugin_openai.config import OpenAIConfig
from astraflow_plugin_openai.patience import is_away, patiently
from astraflow_serving.desk import Flight
from astraflow_serving.engine import Backend, end_requests
from astraflow_serving.http import ServerClient, ServerRefused, ServerSilent
from astraflow_serving.model_folder import ModelConfig


class OpenAIBackend(Backend):
    """``texts``: only by text. A request that is ended closes its connection, by which a server knows."""

    def __init__(
        self,
        config: OpenAIConfig,
        client: ServerClient,
        model: ModelConfig,
        served: str,
        context_length: int,
        texts: Texts | None,
    ) -> None:
        super().__init__(
            "openai", config.max_batch, context_length, model.vocabulary, config.stall_deadline_s
        )
        self.texts = texts
        self._client = client
        self._eos = model.eos
        self._served = served
        self._retry_s = config.retry_s
        self._work: dict[Flight, asyncio.Task[None]] = {}

    @property
    def version(self) -> int:
        """A frozen model has one."""
        return 0

    def completion(self, request: GenerateRequest) -> PendingCompletion:
        """A request as the server takes it."""
        if self.texts is None:
            return TokenCompletion(request, self._eos)
        return TextCompletion(request, self._eos, self.texts)

    async def sample(self, flight: Flight) -> GenerateResult:
        """Follow the answer to its end."""
        completion = self.completion(flight.request)
        work = asyncio.ensure_future(self.follow(completion))
        self._work[flight] = work
        try:
            await work
            return completion.result(aborted=False)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not flight.aborting or (task is not None and task.cancelling()):
                raise
            return completion.result(aborted=True)
        finally:
            work.cancel()
            del self._work[flight]

    async def follow(self, completion: PendingCompletion) -> None:
        """Take in the events of an answer, asked for again as long as none of it has come."""
        body = {"model": self._served, **completion.body()}

        async def once() -> None:
            try:
                async with aclosing(self._client.events(completions.PATH, body)) as events:
                    async for event in events:
                        before = completion.count
                        done = completion.take(event)
                        self.tokens += completion.count - before
                        if done:
                            return
            except (ServerSilent, ServerRefused) as error:
                if completion.count and is_away(error):  # another try would sample something else
                    raise AstraFlowError(f"an answer was interrupted: {error}") from error
                raise

        await patiently(once, self._retry_s)

    async def score(
        self, identifier: str, tokens: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.float32]:
        """Score by vLLM's ``prompt_logprobs``."""
        body = {"model": self._served, **completions.body_of_score(tokens)}
        answer = await patiently(lambda: self._client.post(completions.PATH, body), self._retry_s)
        return completions.read_scores(answer, tokens)

    async def halt(self, mode: PauseMode) -> None:
        """Nothing is sent while the desk is closed, and what runs is ended or has drained."""

    async def go_on(self) -> None:
        """Nothing was halted at the server."""

    async def end(self, flights: Sequence[Flight]) -> None:
        """Close their connections, each once."""
        for flight in flights:
            work = self._work.get(flight)
            if work is not None and not work.cancelling():
                work.cancel()

    async def load(self, source: WeightSource) -> None:
        """A frozen model has none to load."""
        raise WeightsError(
            f"engine 'openai' is frozen and takes no weights; version {source.version} of policy "
            f"{source.policy!r} needs an engine with capability weights.path"
        )

    async def close(self) -> None:
        """End all requests; the server continues."""
        self.desk.close()
        self.desk.fail(RuntimeError("engine 'openai' was closed"))
        await end_requests(self, list(self.desk.running))
        await self._client.close()
