"""The engine ``sample_thing``."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
from astraflow_plugin_sample_thing.sampled import SampledSequence, choose
from pydantic import Field
from safetensors import SafetensorError
from safetensors.numpy import load_file

from astraflow_core.config.models import ConfigModel, PositiveInt
from astraflow_core.errors import WeightsError, WrongVersion
from astraflow_core.protocols.engine import PauseMode
from astraflow_core.types import (
    ComponentContext,
    GenerateRequest,
    GenerateResult,
    LogprobSemantics,
    WeightSource,
)

POSITIONS = 16


class SampleThingConfig(ConfigModel):
    """``engine = { use = "sample_thing" }``"""

    context: PositiveInt = Field(128, description="Most tokens of a sequence.")
    token_s: float = Field(
        0.0, ge=0, description="Seconds from one token of a sequence to the next."
    )


class SampleThing:
    """Samples from a table: token ``t`` of a completion from ``softmax(logits[t])``, whatever the prompt.

    The weights are one tensor ``logits``, float32 ``[16, vocabulary]``; later tokens use the last row. Replace
    ``_logits_of`` by a forward pass of your model; what is around it decides who may sample when.
    """

    def __init__(self, config: SampleThingConfig, context: ComponentContext) -> None:
        self._config = config
        self._random = np.random.default_rng(context.seed)
        self._logits: npt.NDArray[np.float64] = np.zeros((POSITIONS, 1))
        self._ends: frozenset[int] = frozenset()
        self._version = 0
        self._sequences: dict[str, SampledSequence] = {}
        self._paused = self._draining = self._closed = False
        self._changed = asyncio.Condition()
        self._generated = self._prompted = 0

    @property
    def logprob_semantics(self) -> LogprobSemantics:
        """Temperature applied, over the whole vocabulary."""
        return LogprobSemantics(temperature=True, truncation=False)

    @property
    def context_length(self) -> int:
        """As the config says."""
        return self._config.context

    async def start(self, model: Path) -> None:
        """The table in the folder, or one of zeros over the vocabulary of another model."""
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        ends = config["eos_token_id"]
        self._ends = frozenset(ends if isinstance(ends, list) else [ends])
        self._logits = np.zeros((POSITIONS, int(config["vocab_size"])))
        file = model / "model.safetensors"
        tensors = load_file(file) if file.exists() else {}
        if "logits" in tensors:
            self._logits = tensors["logits"].astype(np.float64)

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """Sample one sequence, a token at a time; between two tokens the engine may pause or load weights."""
        if self._closed:
            raise RuntimeError("the engine was closed")
        asked = len(request.prompt) + request.sampling.max_tokens
        if not len(request.prompt) or asked > self.context_length:
            raise ValueError(
                f"{len(request.prompt)} prompt tokens and {request.sampling.max_tokens} more: expected a prompt, and "
                f"at most {self.context_length} tokens"
            )
        sequence = SampledSequence(request, began=not self._paused)
        self._sequences[request.id] = sequence
        self._prompted += len(request.prompt)
        try:
            while not sequence.reason:
                async with self._changed:
                    await self._changed.wait_for(lambda: self._has_turn(sequence))
                if sequence.reason:
                    break
                if request.pinned_version not in (None, self._version):
                    raise WrongVersion(f"pinned to {request.pinned_version}, has {self._version}")
                sequence.began = True
                self._sample(sequence)
                await asyncio.sleep(self._config.token_s)
        finally:
            del self._sequences[request.id]
            await self._tell()
        result: GenerateResult = sequence.result()
        return result

    def _has_turn(self, sequence: SampledSequence) -> bool:
        """Whether it may sample, or has ended without."""
        pinned = sequence.request.pinned_version
        wrong = pinned is not None and pinned != self._version
        goes_on = not self._paused or (self._draining and sequence.began)
        return bool(sequence.reason) or wrong or goes_on

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _logits_of(self, sequence: SampledSequence) -> npt.NDArray[np.float64]:
        row: npt.NDArray[np.float64] = self._logits[min(len(sequence.tokens), POSITIONS - 1)]
        return row

    def _sample(self, sequence: SampledSequence) -> None:
        logits, sampling = self._logits_of(sequence), sequence.request.sampling
        token, logprob = choose(logits, sampling, self._random)
        sequence.append(token, logprob, self._version, self._ends)
        self._generated += 1

    async def score(self, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        """A table does not know where in ``tokens`` a completion begins, so the capability is not declared."""
        raise RuntimeError("the engine lacks the capability 'score'")

    async def pause(self, mode: PauseMode) -> None:
        """A step never waits, so none runs when this returns."""
        self._paused, self._draining = True, mode == "wait"
        if mode == "abort":
            await self.abort(list(self._sequences))
        if mode == "wait":
            async with self._changed:
                await self._changed.wait_for(self._is_drained)
            self._draining = False

    def _is_drained(self) -> bool:
        return not self._draining or not any(s.began for s in self._sequences.values())

    async def resume(self) -> None:
        """Go on."""
        self._paused = self._draining = False
        await self._tell()

    async def abort(self, ids: list[str]) -> None:
        """End the named requests with what they have."""
        for identifier in ids:
            if identifier in self._sequences:
                self._sequences[identifier].reason = "abort"
        await self._tell()

    async def load_weights(self, source: WeightSource) -> None:
        """A version is one tensor ``logits``."""
        try:
            tensors = load_file(source.path)
        except (OSError, SafetensorError) as error:
            raise WeightsError(f"version {source.version} cannot be read: {error}") from error
        found = {name: (str(tensor.dtype), tensor.shape) for name, tensor in tensors.items()}
        expected = {"logits": ("float32", self._logits.shape)}
        if found != expected:
            raise WeightsError(f"version {source.version} has {found}; expected {expected}")
        self._logits, self._version = tensors["logits"].astype(np.float64), source.version
        await self._tell()

    async def sleep(self, level: int) -> None:
        """Not declared among the capabilities."""
        raise RuntimeError("the engine lacks the capability 'sleep'")

    async def wake(self) -> None:
        """Not declared among the capabilities."""
        raise RuntimeError("the engine lacks the capability 'sleep'")

    async def health(self) -> dict[str, float]:
        """Gauges and counters."""
        running = sum(sequence.began for sequence in self._sequences.values())
        return {
            "running": running,
            "waiting": len(self._sequences) - running,
            "version": self._version,
            "tokens_generated": self._generated,
            "prompt_tokens": self._prompted,
            "decode_seconds": 0.0,
        }

    async def close(self) -> None:
        """End all requests."""
        self._closed = True
        await self.abort(list(self._sequences))
