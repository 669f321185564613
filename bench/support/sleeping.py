"""An engine that sleeps as long as a model would take, with lengths as uneven as those of real rollouts."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field

from astraflow_core.config.models import ConfigModel
from astraflow_core.errors import WrongVersion
from astraflow_core.protocols.engine import PauseMode
from astraflow_core.types import (
    ComponentContext,
    GenerateRequest,
    GenerateResult,
    LogprobSemantics,
    WeightSource,
)


class EngineConfig(ConfigModel):
    """Keys of :class:`Engine`."""

    token_s: Annotated[float, Field(gt=0)] = Field(description="Seconds per token.")
    median: Annotated[float, Field(ge=1)] = Field(64.0, description="Median length in tokens.")
    sigma: Annotated[float, Field(ge=0)] = Field(1.0, description="Sigma of the log of a length.")


class Engine:
    """The ``n``-th request gets the ``n``-th length of a seeded log-normal series (tails of this kind
    are what reasoning models show). Swaps of weights take no time and interrupt nothing; the tokens that
    would have been sampled after one carry the new version."""

    Config = EngineConfig
    capabilities = frozenset({"pause.keep", "weights.path", "weights.inflight"})
    logprob_semantics = LogprobSemantics(temperature=True, truncation=False)
    context_length = 1 << 20

    def __init__(self, config: EngineConfig, context: ComponentContext) -> None:
        self._config = config
        self._rng = np.random.default_rng(context.seed)
        self._swaps = [(0.0, 0)]
        self._running: dict[str, asyncio.Event] = {}
        self._tokens = self._prompt_tokens = 0

    async def start(self, model: Path) -> None:
        """Nothing is loaded."""
        del model

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """Sleep for the length that is due."""
        version = self._swaps[-1][1]
        if request.pinned_version not in (None, version):
            raise WrongVersion(f"pinned to {request.pinned_version}, serving {version}")
        drawn = self._rng.lognormal(np.log(self._config.median), self._config.sigma)
        length = max(1, min(round(drawn), request.sampling.max_tokens))
        aborted = self._running[request.id] = asyncio.Event()
        began = time.monotonic()
        try:
            async with asyncio.timeout(length * self._config.token_s):
                await aborted.wait()
            length = max(1, int((time.monotonic() - began) / self._config.token_s))
        except TimeoutError:
            pass
        finally:
            del self._running[request.id]
        self._tokens += length
        self._prompt_tokens += len(request.prompt)
        return GenerateResult(
            request.id,
            np.full(length, 2, np.int32),
            np.full(length, -1.0, np.float32),
            self._versions(began, length),
            "abort" if aborted.is_set() else "stop",
        )

    def _versions(self, began: float, length: int) -> npt.NDArray[np.int32]:
        sampled = began + self._config.token_s * np.arange(length)
        times = np.array([at for at, _ in self._swaps])
        numbers = np.array([version for _, version in self._swaps], np.int32)
        return numbers[np.searchsorted(times, sampled, side="right") - 1]

    async def score(self, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        """Every token is as likely as any other."""
        return np.full(len(tokens), -1.0, np.float32)

    async def pause(self, mode: PauseMode) -> None:
        """Nothing stops."""
        del mode

    async def resume(self) -> None:
        """Nothing had stopped."""

    async def abort(self, ids: list[str]) -> None:
        """End the named requests with what they have."""
        for identifier in ids:
            if (running := self._running.get(identifier)) is not None:
                running.set()

    async def load_weights(self, source: WeightSource) -> None:
        """From now on tokens are of this version."""
        self._swaps.append((time.monotonic(), source.version))

    async def sleep(self, level: int) -> None:
        """Nothing to free."""

    async def wake(self) -> None:
        """Nothing to allocate."""

    async def health(self) -> dict[str, float]:
        """Gauges and counters."""
        return {
            "running": len(self._running),
            "waiting": 0,
            "version": self._swaps[-1][1],
            "tokens_generated": self._tokens,
            "prompt_tokens": self._prompt_tokens,
            "decode_seconds": 0.0,
        }

    async def close(self) -> None:
        """End everything."""
        await self.abort(list(self._running))
