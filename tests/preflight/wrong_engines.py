"""Engines and trainers that each do one thing wrong; the doctor has to find it. All are tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import numpy as np

from astraflow_core.types import (
    Batch,
    ComponentContext,
    ExportedTensor,
    GenerateRequest,
    GenerateResult,
    LogprobSemantics,
    WeightSource,
)
from astraflow_testing.table import POSITIONS, TableEngine, TableTrainer

PROMPT = 4
"""Tokens of a prompt of the run of tables, such as ``x12=``."""


class Scoring(TableEngine):
    """A table that scores, since it knows how long the prompts are. Nothing is wrong with it."""

    capabilities = TableEngine.capabilities | {"score"}

    async def score(self, tokens: np.ndarray) -> np.ndarray:
        rows = self._logits[np.clip(np.arange(len(tokens)) - PROMPT, 0, POSITIONS - 1)]
        logprobs = rows - np.log(np.exp(rows).sum(-1, keepdims=True))
        return logprobs[np.arange(len(tokens)), tokens].astype(np.float32)


class KeepsItsFirstWeights(Scoring):
    """Reports each version as loaded, and computes with the weights of the model's folder."""

    async def load_weights(self, source: WeightSource) -> None:
        first = self._logits
        await super().load_weights(source)
        self._logits = first


class ShiftedScores(Scoring):
    async def score(self, tokens: np.ndarray) -> np.ndarray:
        return np.roll(await super().score(tokens), 1)


class Shifted(TableEngine):
    async def generate(self, request: GenerateRequest) -> GenerateResult:
        result = await super().generate(request)
        return replace(result, logprobs=np.roll(result.logprobs, 1))


class DeclaredRaw(TableEngine):
    @property
    def logprob_semantics(self) -> LogprobSemantics:
        return LogprobSemantics(temperature=False, truncation=False)


class DeclaredTruncated(TableEngine):
    @property
    def logprob_semantics(self) -> LogprobSemantics:
        return LogprobSemantics(temperature=True, truncation=True)


class IgnoresTopP(TableEngine):
    async def generate(self, request: GenerateRequest) -> GenerateResult:
        return await super().generate(
            replace(request, sampling=replace(request.sampling, top_p=1.0))
        )


class IgnoresTemperature(TableEngine):
    """Samples at temperature 1 and reports the log-probs of the temperature that was asked for."""

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        asked = request.sampling.temperature
        if asked == 0:
            return await super().generate(request)
        result = await super().generate(
            replace(request, sampling=replace(request.sampling, temperature=1.0))
        )
        rows = self._logits[np.minimum(np.arange(len(result.tokens)), POSITIONS - 1)] / asked
        logprobs = rows - np.log(np.exp(rows).sum(-1, keepdims=True))
        picked = logprobs[np.arange(len(rows)), result.tokens].astype(np.float32)
        return replace(result, logprobs=picked)


class OldVersions(TableEngine):
    async def generate(self, request: GenerateRequest) -> GenerateResult:
        result = await super().generate(request)
        return replace(result, versions=np.zeros_like(result.versions))


class ForgetfulLoad(TableEngine):
    """Loads a version with one row of the table mixed up."""

    async def load_weights(self, source: WeightSource) -> None:
        await super().load_weights(source)
        self._logits = self._logits.copy()
        self._logits[3] = self._logits[3][::-1]


class PretendsToLoad(TableEngine):
    """Counts versions, and continues with the weights that it began with."""

    async def load_weights(self, source: WeightSource) -> None:
        before = self._logits
        await super().load_weights(source)
        self._logits = before


class Dies(TableEngine):
    async def generate(self, request: GenerateRequest) -> GenerateResult:
        raise ValueError("no more paper")


class WarmTrainer(TableTrainer):
    """Divides by the temperature twice."""

    def logprobs(self, batch: Batch, model: Literal["current", "reference"]) -> np.ndarray:
        return super().logprobs(replace(batch, temperature=batch.temperature**2), model)


class LossyExport(TableTrainer):
    """What it exports differs from one time to the next."""

    exports = 0

    def export(self) -> Iterator[ExportedTensor]:
        self.exports += 1
        for tensor in super().export():
            yield replace(tensor, data=tensor.data + np.float32(self.exports - 1))


class LateTrainer(TableTrainer):
    def setup(self, model: object, total_steps: int, needs: frozenset[str]) -> None:
        raise MemoryError("no room for the model")


class SeveralRanks(TableTrainer):
    """Nothing is wrong with it: what its second rank computes does not count."""

    def __init__(self, config: object, context: ComponentContext) -> None:
        super().__init__(config, context)  # type: ignore[arg-type]
        self.place = context.ranks

    def logprobs(self, batch: Batch, model: Literal["current", "reference"]) -> np.ndarray:
        found = super().logprobs(batch, model)
        return found if self.place.rank == 0 else found - 1  # the first counts

    def export(self) -> Iterator[ExportedTensor]:
        assert self.place.size == 2
        return super().export()


class LateRank(SeveralRanks):
    def setup(self, model: object, total_steps: int, needs: frozenset[str]) -> None:
        if self.place.rank:
            raise MemoryError("no room on this one")
        super().setup(model, total_steps, needs)  # type: ignore[arg-type]
