"""The doctor's hold on an engine host: probe rows out, a version of the weights in."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt

from astraflow_core.config.models import RunConfig
from astraflow_core.errors import DeadlineExceeded, RunFailed
from astraflow_core.protocols.engine import PauseMode
from astraflow_core.protocols.transport import Receiver
from astraflow_core.types import (
    Announcement,
    GenerateRequest,
    LogprobSemantics,
    Sampling,
    WeightSource,
)
from astraflow_runtime.preflight.rows import Floats, MeasuredRow
from astraflow_runtime.raas.engines.host_process import EngineHostProcess, HostSettings
from astraflow_runtime.threads import in_thread

NAME = "doctor"
REPEATS = 2
"""Samples per prompt where the choice is random."""


class EngineSide:
    """An engine that has started. Calls have the deadlines of a run."""

    def __init__(self, config: RunConfig, policy: str, host: EngineHostProcess) -> None:
        self._run, self._pause = config.run, cast(PauseMode, config.raas.pause)
        self._policy, self._host = policy, host
        self._numbers = itertools.count()

    @property
    def semantics(self) -> LogprobSemantics:
        """As the engine declares them."""
        return self._host.semantics

    @property
    def context_length(self) -> int:
        """Most tokens of a sequence."""
        return self._host.context_length

    async def rows(
        self, prompts: Sequence[npt.NDArray[np.int32]], sampling: Sampling, repeats: int = REPEATS
    ) -> list[MeasuredRow]:
        """``repeats`` continuations of each prompt, all asked for at once."""
        requests = [
            GenerateRequest(f"probe-{next(self._numbers)}", prompt, sampling)
            for prompt in prompts
            for _ in range(repeats)
        ]
        calls = [asyncio.ensure_future(self._host.client.generate(one)) for one in requests]
        try:
            async with asyncio.timeout(self._run.deadline_s):
                results = await asyncio.gather(*calls)
        except TimeoutError:
            raise DeadlineExceeded(
                self._host.client.host, "the probe's samples", self._run.deadline_s
            ) from None
        finally:
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        for result in results:
            lengths = {len(result.tokens), len(result.logprobs), len(result.versions)}
            if len(lengths) > 1 or not len(result.tokens):
                raise RunFailed(
                    f"the engine of policy {self._policy!r} returned {len(result.tokens)} tokens with "
                    f"{len(result.logprobs)} log-probs and {len(result.versions)} versions"
                )
        return [
            MeasuredRow(request.prompt, result.tokens, result.logprobs, result.versions)
            for request, result in zip(requests, results, strict=True)
        ]

    async def scores(self, rows: Sequence[MeasuredRow]) -> list[Floats]:
        """``Engine.score`` of the sampled tokens of each row, float32 ``[T]``."""
        found = []
        for row in rows:
            scored = await self._host.client.score(row.whole, self._run.deadline_s)
            found.append(scored[len(row.prompt) :])
        return found

    async def load(self, source: WeightSource) -> None:
        """Pause, load, resume, as a RaaS does."""
        client, deadline_s = self._host.client, self._run.deadline_s
        await client.pause(self._pause, deadline_s)
        await client.load_weights(source, deadline_s)
        await client.resume(deadline_s)


@asynccontextmanager
async def engine_side(
    config: RunConfig, directory: Path, policy: str, token: str, sockets: Path
) -> AsyncIterator[EngineSide]:
    """Start the engine host of a policy, and end it with the context."""
    settings = HostSettings(config, directory, NAME, policy, token, sockets)
    host = await EngineHostProcess.start(settings, 1)
    life = asyncio.create_task(host.wait_end())
    try:
        yield EngineSide(config, policy, host)
        await host.close()
    finally:
        host.kill("was ended by the doctor")
        await asyncio.gather(life, return_exceptions=True)


@asynccontextmanager
async def fetched(
    receiver: Receiver, announcement: Announcement, deadline_s: float
) -> AsyncIterator[WeightSource]:
    """The weights of a version on this side, until the context ends."""
    fetch = partial(receiver.fetch, announcement, deadline_s)
    source = await in_thread(f"fetch-{announcement.policy}", fetch)
    try:
        yield source
    finally:
        await in_thread(f"release-{announcement.policy}", partial(receiver.release, source))


def greedy(sampling: Sampling) -> Sampling:
    """The same without chance."""
    return replace(sampling, temperature=0.0, top_p=1.0, top_k=0, min_p=0.0)
