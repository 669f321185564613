"""A policy that learns for next to no CPU time, and an engine and a trainer that take a given time.

The policy is a table: what follows ``n`` tokens of an answer depends on token ``n`` + 1 of the prompt alone, which is enough to
write the complement of digits, for prompts that were never trained as well. The time of a rollout is that of the tokens which a model
would think before it answers; their number is drawn from a seeded log-normal distribution, and none of them is sampled. The
answer is of the weights that are served when the request begins, as old as any of its tokens could be.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field
from safetensors import safe_open

from astraflow_core.config.models import ConfigModel
from astraflow_core.errors import WrongVersion
from astraflow_core.protocols.algorithm import Algorithm
from astraflow_core.types import (
    Batch,
    ComponentContext,
    ExportedTensor,
    GenerateRequest,
    GenerateResult,
    WeightSource,
)
from astraflow_core.types.generation import FinishReason
from astraflow_testing.table import TableTrainer
from bench.support import sleeping

PLACES = 8
"""Tokens of an answer that have rows of the table; later ones share the last."""
CHANGED = 0.01
"""Share of the ballast that an update changes, each value by one bit."""

Tokens = npt.NDArray[np.int32]
Table = npt.NDArray[np.float64]


def empty_table(model: Path) -> tuple[Table, int]:
    """Zeros ``[places × vocabulary, vocabulary]``, and the token that ends an answer."""
    config = json.loads((model / "config.json").read_text())
    size = int(config["vocab_size"])
    return np.zeros((PLACES * size, size)), int(config["eos_token_id"])


def rows(place: npt.NDArray[np.int64], asked: Tokens, size: int) -> npt.NDArray[np.int64]:
    """Rows of the table for tokens number ``place`` of an answer to prompts whose next token is ``asked``."""
    return np.minimum(place, PLACES - 1) * size + asked.astype(np.int64)


class EngineConfig(sleeping.EngineConfig):
    """Keys of :class:`Engine`."""

    longest: Annotated[float, Field(ge=1)] = Field(
        20.0, description="Longest length in medians; a model has a limit too."
    )
    load: list[list[float]] = Field(
        [[0, 1.0]],
        description="[version, factor] of the lengths; linear in between, constant outside.",
    )


class Engine(sleeping.Engine):
    """Thinks for as long as the drawn number of tokens takes, then answers from the table. An evaluation does not think."""

    Config = EngineConfig  # type: ignore[assignment]
    capabilities = frozenset({"pause.keep", "weights.path", "weights.inflight", "sleep"})

    def __init__(self, config: EngineConfig, context: ComponentContext) -> None:
        super().__init__(config, context)
        self._own = config
        self._table: Table = np.zeros((PLACES, 1))
        self._end = -1
        self._awake = asyncio.Event()
        self._awake.set()

    async def start(self, model: Path) -> None:
        """A table of zeros over the model's vocabulary."""
        self._table, self._end = empty_table(model)

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """Answer, after the time that is due."""
        await self._awake.wait()
        version = self._swaps[-1][1]
        if request.pinned_version not in (None, version):
            raise WrongVersion(f"pinned to {request.pinned_version}, serving {version}")
        tokens, logprobs = self._answer(request)
        aborted = self._running[request.id] = asyncio.Event()
        try:
            if request.pinned_version is None:
                async with asyncio.timeout(self._seconds(version)):
                    await aborted.wait()
        except TimeoutError:
            pass
        finally:
            del self._running[request.id]
        self._tokens += len(tokens)
        self._prompt_tokens += len(request.prompt)
        stopped: FinishReason = "stop" if tokens[-1] == self._end else "length"
        return GenerateResult(
            request.id,
            np.array(tokens, np.int32),
            np.array(logprobs, np.float32),
            np.full(len(tokens), version, np.int32),
            "abort" if aborted.is_set() else stopped,
        )

    def _seconds(self, version: int) -> float:
        drawn = self._rng.lognormal(0.0, self._own.sigma)
        at, factor = np.array(self._own.load).T
        length = self._own.median * min(drawn, self._own.longest)
        return float(length * np.interp(version, at, factor) * self._own.token_s)

    def _answer(self, request: GenerateRequest) -> tuple[list[int], list[float]]:
        size, sampling = self._table.shape[1], request.sampling
        prompt = np.asarray(request.prompt, np.int32)
        tokens: list[int] = []
        logprobs: list[float] = []
        while len(tokens) < sampling.max_tokens and tokens[-1:] != [self._end]:
            asked = prompt[min(len(tokens) + 1, len(prompt) - 1)]
            logits = self._table[int(rows(np.array(len(tokens)), asked, size))]
            scaled = logits / (sampling.temperature or 1.0)
            chances = np.exp(scaled - scaled.max())
            chances /= chances.sum()
            greedy = sampling.temperature == 0
            token = int(logits.argmax() if greedy else self._rng.choice(size, p=chances))
            tokens.append(token)
            logprobs.append(float(np.log(chances[token])))
        return tokens, logprobs

    async def load_weights(self, source: WeightSource) -> None:
        """Requests that begin from now on are of this version."""
        with safe_open(source.path, framework="np") as tensors:
            self._table = np.asarray(tensors.get_tensor("logits"), np.float64)
        await super().load_weights(source)

    async def sleep(self, level: int) -> None:
        """Let running requests end, and begin no others."""
        self._awake.clear()
        await self.abort(list(self._running))

    async def wake(self) -> None:
        """Go on."""
        self._awake.set()


class TrainerConfig(ConfigModel):
    """Keys of :class:`Trainer`."""

    lr: Annotated[float, Field(gt=0)] = Field(300.0, description="Step size.")
    step_s: Annotated[float, Field(ge=0)] = Field(0.0, description="Seconds per step.")
    ballast_mb: Annotated[float, Field(ge=0)] = Field(
        0.0, description="Bytes of a second tensor, in bfloat16, of which each step changes a part."
    )


class Trainer(TableTrainer):
    """Ascends the policy gradient of the table; a step takes the configured time."""

    Config = TrainerConfig  # type: ignore[assignment]
    capabilities = frozenset({"checkpoint"})

    def __init__(self, config: TrainerConfig, context: ComponentContext) -> None:
        super().__init__(TableTrainer.Config.model_validate({"lr": config.lr}), context)
        self._own = config
        self._rng = np.random.default_rng(context.seed)
        self._ballast = np.zeros(0, np.uint16)

    def setup(self, model: Path, total_steps: int, needs: frozenset[str]) -> None:
        """A table of zeros, and the ballast."""
        super().setup(model, total_steps, needs)
        self._logits = empty_table(model)[0]
        size = int(self._own.ballast_mb * 1e6) // 2
        self._ballast = (self._rng.standard_normal(size, np.float32).view(np.uint32) >> 16).astype(
            np.uint16
        )

    def _positions(self, batch: Batch) -> npt.NDArray[np.int64]:
        place = super()._positions(batch)
        starts, lengths = batch.offsets[:-1], np.diff(batch.offsets)
        within = np.minimum(place + 1, np.repeat(lengths, lengths) - 1)
        asked = batch.tokens[np.repeat(starts, lengths) + within]
        return rows(place, asked, self._logits.shape[1])

    def step(self, batch: Batch, algorithm: Algorithm, step: int) -> dict[str, float]:
        """One update that takes ``step_s`` in all."""
        end = time.monotonic() + self._own.step_s
        assert batch.advantages is not None
        share = np.where(batch.loss_mask, batch.weights["policy"] * batch.advantages, 0.0)
        places, size = self._positions(batch), len(self._logits)
        scaled = self._logits / batch.temperature
        chances = np.exp(scaled - scaled.max(-1, keepdims=True))
        chances /= chances.sum(-1, keepdims=True)
        gradient = -np.bincount(places, weights=share, minlength=size)[:, None] * chances
        np.add.at(gradient, (places, batch.tokens), share)
        self._logits += self._own.lr * gradient / batch.temperature
        if len(self._ballast):
            changed = self._rng.integers(0, len(self._ballast), int(CHANGED * len(self._ballast)))
            self._ballast[changed] ^= 1
        time.sleep(max(0.0, end - time.monotonic()))
        return {"grad_norm": float(np.linalg.norm(gradient)), "tokens": float(len(batch.tokens))}

    def export(self) -> Iterator[ExportedTensor]:
        """The table, and the ballast if there is some."""
        table = self._logits.astype(np.float32)
        yield ExportedTensor("logits", "F32", table.shape, table)
        if len(self._ballast):
            yield ExportedTensor("ballast", "BF16", self._ballast.shape, self._ballast)
