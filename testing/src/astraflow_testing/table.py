"""A policy that is a table of logits: engine, trainer and algorithm without a deep learning framework.

The table model samples token ``t`` of a completion from ``softmax(logits[t])``, whatever the prompt. It
learns a fixed answer by policy gradient, so a whole run with it is real in everything but the model, and
starts in a second. Named in a config as ``use = "astraflow_testing.table:TableEngine"`` and so on.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from astraflow_core.config.models import ConfigModel, PositiveInt
from astraflow_core.errors import NonFiniteLoss, WeightsError, WrongVersion
from astraflow_core.protocols.algorithm import Algorithm
from astraflow_core.protocols.engine import PauseMode
from astraflow_core.types import (
    Batch,
    ComponentContext,
    ExportedTensor,
    GenerateRequest,
    GenerateResult,
    LogprobSemantics,
    Loss,
    LossInputs,
    Sampling,
    WeightSource,
)
from astraflow_core.types.generation import FinishReason

POSITIONS = 16
"""Rows of the table; later tokens use the last row."""

Floats = npt.NDArray[np.float64]


def _vocabulary(model: Path) -> int:
    return int(json.loads((model / "config.json").read_text())["vocab_size"])


def _end(model: Path) -> int:
    return int(json.loads((model / "config.json").read_text())["eos_token_id"])


def _table(model: Path) -> Floats:
    """The table of a folder that :meth:`TableTrainer.save_model` wrote; of any other model zeros over its
    vocabulary: uniform."""
    file = model / "model.safetensors"
    if file.exists():
        with safe_open(file, framework="np") as tensors:
            if "logits" in tensors.keys():  # noqa: SIM118 (not a mapping)
                return np.asarray(tensors.get_tensor("logits"), dtype=np.float64)
    return np.zeros((POSITIONS, _vocabulary(model)))


def _log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)), dtype=np.float64)


def _truncated(probs: Floats, sampling: Sampling) -> Floats:
    """``probs`` ``[V]`` with zeros where top-k, then top-p, then min-p drop a token; sums to 1."""
    order = np.argsort(-probs, kind="stable")
    kept = np.where(np.arange(len(probs)) < (sampling.top_k or len(probs)), probs[order], 0.0)
    before = np.cumsum(kept) - kept
    if sampling.top_p < 1:
        kept[1:][before[1:] >= sampling.top_p * kept.sum()] = 0.0
    kept[kept < sampling.min_p * kept[0]] = 0.0
    result = np.zeros_like(probs)
    result[order] = kept / kept.sum()
    return result


class TableEngineConfig(ConfigModel):
    """Keys of :class:`TableEngine`."""

    token_s: Annotated[float, Field(ge=0)] = Field(0.0, description="Seconds per decoding step.")
    start_s: Annotated[float, Field(ge=0)] = Field(0.0, description="Seconds to start.")
    slots: Annotated[int, Field(ge=0)] = Field(
        0, description="Most requests at once; 0: any number."
    )
    context: PositiveInt = Field(128, description="Most tokens of a sequence.")


class TableEngine:
    """Samples from the table, one token of every running request per decoding step. A table has no
    prompt, so it cannot say where in given tokens the sampled part begins: it offers no ``score``."""

    Config = TableEngineConfig
    capabilities = frozenset(
        {"pause.keep", "pause.wait", "pause.abort", "weights.path", "weights.inflight", "sleep"}
    )

    def __init__(self, config: TableEngineConfig, context: ComponentContext) -> None:
        self._config = config
        self._rng = np.random.default_rng(context.seed)
        self._logits: Floats = np.zeros((POSITIONS, 1))
        self._eos, self._version = -1, -1
        self._running: dict[str, _Running] = {}
        self._waiting: dict[str, _Running] = {}
        self._paused = self._closed = self._asleep = False
        self._go = asyncio.Event()
        self._go.set()
        self._stepping: asyncio.Task[None] | None = None
        self._tokens = self._prompt_tokens = 0

    @property
    def logprob_semantics(self) -> LogprobSemantics:
        """Temperature applied, no truncation."""
        return LogprobSemantics(temperature=True, truncation=False)

    @property
    def context_length(self) -> int:
        """As the config says; a table has room for little."""
        return self._config.context

    async def start(self, model: Path) -> None:
        """The table that the folder holds, or one of zeros over the model's vocabulary: uniform."""
        await asyncio.sleep(self._config.start_s)
        self._logits = _table(model)
        self._eos = _end(model)
        self._version = 0

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """See :class:`astraflow_core.protocols.engine.Engine`."""
        if self._closed:
            raise RuntimeError("the table engine was closed")
        if not len(request.prompt):
            raise ValueError(f"request {request.id!r} has no prompt tokens; at least one is needed")
        if len(request.prompt) + request.sampling.max_tokens > self.context_length:
            raise ValueError(
                f"{len(request.prompt)} prompt tokens + {request.sampling.max_tokens} are over the "
                f"context of {self.context_length}"
            )
        running = self._waiting[request.id] = _Running(request)
        if not self._paused:
            self._admit()
        try:
            return await running.future
        except asyncio.CancelledError:
            self._waiting.pop(request.id, None)
            self._running.pop(request.id, None)
            raise

    def _admit(self) -> None:
        """Let those that wait run, as far as there are slots, but none pinned to another version."""
        free = (self._config.slots or math.inf) - len(self._running)
        for identifier in list(self._waiting)[: int(min(free, len(self._waiting)))]:
            running = self._running[identifier] = self._waiting.pop(identifier)
            self._prompt_tokens += len(running.request.prompt)
        self._refuse_other_versions()
        if self._stepping is None or self._stepping.done():
            self._stepping = asyncio.create_task(self._step_until_idle())

    def _refuse_other_versions(self) -> None:
        for running in list(self._running.values()):
            pinned = running.request.pinned_version
            if pinned not in (None, self._version):
                del self._running[running.request.id]
                error = WrongVersion(f"pinned to {pinned}, serving {self._version}")
                running.future.set_exception(error)

    async def _step_until_idle(self) -> None:
        while self._running:
            await self._go.wait()
            await asyncio.sleep(self._config.token_s)
            if not self._go.is_set():
                continue
            for running in list(self._running.values()):
                self._sample(running)
            if not self._paused:
                self._admit()

    def _sample(self, running: _Running) -> None:
        sampling = running.request.sampling
        row = self._logits[min(len(running.tokens), POSITIONS - 1)]
        if sampling.temperature == 0:
            token = int(row.argmax())
            logprob = float(_log_softmax(row)[token])
        else:
            logprobs = _log_softmax(row / sampling.temperature)
            probs = _truncated(np.exp(logprobs), sampling)
            token = int(self._rng.choice(len(row), p=probs))
            logprob = float(logprobs[token])
        running.tokens.append(token)
        running.logprobs.append(logprob)
        running.versions.append(self._version)
        self._tokens += 1
        stops = running.stopped(self._eos)
        if stops or len(running.tokens) == sampling.max_tokens:
            self._finish(running, "stop" if stops else "length")

    def _finish(self, running: _Running, reason: FinishReason) -> None:
        self._running.pop(running.request.id, None)
        self._waiting.pop(running.request.id, None)
        if not running.future.done():
            running.future.set_result(running.result(reason))

    async def score(self, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        """Not declared among the capabilities."""
        raise RuntimeError("the table engine lacks the capability 'score'")

    async def pause(self, mode: PauseMode) -> None:
        """See :class:`astraflow_core.protocols.engine.Engine`."""
        self._paused = True
        if mode == "wait":
            while self._running and self._go.is_set():
                await asyncio.sleep(0.001)
        self._go.clear()
        if mode == "abort":
            await self.abort(list(self._running))

    async def resume(self) -> None:
        """Go on."""
        if self._asleep:
            raise RuntimeError("the table engine sleeps; wake it first")
        self._paused = False
        self._go.set()
        self._admit()

    async def abort(self, ids: list[str]) -> None:
        """End the named requests with what they have."""
        for identifier in ids:
            running = self._running.get(identifier) or self._waiting.get(identifier)
            if running is not None:
                self._finish(running, "abort")

    async def load_weights(self, source: WeightSource) -> None:
        """A version is one tensor ``logits``; requests pinned to another version end."""
        try:
            tensors = load_file(source.path)
        except (OSError, SafetensorError) as error:
            raise WeightsError(
                f"version {source.version}: cannot read the file: {error}"
            ) from error
        got = {name: (str(tensor.dtype), tensor.shape) for name, tensor in tensors.items()}
        if got not in ({"logits": (kind, self._logits.shape)} for kind in ("float32", "float64")):
            raise WeightsError(
                f"version {source.version}: expected one float tensor 'logits' {self._logits.shape}, "
                f"got {got}"
            )
        self._logits = tensors["logits"].astype(np.float64)
        self._version = source.version
        self._refuse_other_versions()

    async def sleep(self, level: int) -> None:
        """End what runs, as its cache would be gone; level 2 forgets the table too."""
        await self.pause("abort")
        self._asleep = True
        if level > 1:
            self._logits = np.zeros_like(self._logits)
            self._version = -1

    async def wake(self) -> None:
        """Undo :meth:`sleep`; the engine stays paused."""
        self._asleep = False

    async def health(self) -> dict[str, float]:
        """Gauges and counters."""
        slots = {"max_running": self._config.slots} if self._config.slots else {}
        return {
            **slots,
            "running": len(self._running),
            "waiting": len(self._waiting),
            "version": self._version,
            "tokens_generated": self._tokens,
            "prompt_tokens": self._prompt_tokens,
            "decode_seconds": 0.0,
        }

    async def close(self) -> None:
        """End everything."""
        self._closed = True
        await self.abort([*self._running, *self._waiting])
        if self._stepping is not None:
            self._stepping.cancel()


class _Running:
    """A request in the engine and what it has so far."""

    def __init__(self, request: GenerateRequest) -> None:
        self.request = request
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.versions: list[int] = []
        self.future: asyncio.Future[GenerateResult] = asyncio.get_running_loop().create_future()

    def stopped(self, eos: int) -> bool:
        """Whether the last token ends it, or completes a sequence that does."""
        sampling, last = self.request.sampling, self.tokens[-1]
        if last in sampling.stop_token_ids or (last == eos and not sampling.ignore_eos):
            return True
        return any(
            stop and tuple(self.tokens[-len(stop) :]) == stop for stop in sampling.stop_sequences
        )

    def result(self, reason: FinishReason) -> GenerateResult:
        return GenerateResult(
            self.request.id,
            np.array(self.tokens, np.int32),
            np.array(self.logprobs, np.float32),
            np.array(self.versions, np.int32),
            reason,
        )


class TableTrainerConfig(ConfigModel):
    """Keys of :class:`TableTrainer`."""

    lr: Annotated[float, Field(gt=0)] = Field(
        100.0, description="Step size of the gradient ascent."
    )
    step_s: Annotated[float, Field(ge=0)] = Field(0.0, description="Seconds per step.")
    nan_at: int = Field(-1, description="Step whose loss is not finite; -1: none.")
    crash_at: int = Field(-1, description="Step at which the process dies; -1: none.")


class TableTrainer:
    """Ascends the policy gradient of the table, with the exact derivative of the log-softmax. Each rank computes
    the whole: a table is small, and ranks that end up alike show that they were told the same."""

    Config = TableTrainerConfig
    capabilities = frozenset({"proximal", "checkpoint", "adopt", "multi_rank"})

    def __init__(self, config: TableTrainerConfig, context: ComponentContext) -> None:
        self._config = config
        self._logits: Floats = np.zeros((POSITIONS, 1))
        self._model = Path()

    def setup(self, model: Path, total_steps: int, needs: frozenset[str]) -> None:
        """The table that the folder holds, or one of zeros over the model's vocabulary."""
        self._model = model
        self._logits = _table(model)

    def _positions(self, batch: Batch) -> npt.NDArray[np.int64]:
        """Row of the table behind each token: how many trained tokens precede it in its sequence."""
        trained = batch.loss_mask.astype(np.int64)
        before = np.cumsum(trained) - trained
        at_row_start = before[batch.offsets[:-1]]
        return np.minimum(before - at_row_start[batch.row_of_token], POSITIONS - 1)

    def logprobs(
        self, batch: Batch, model: Literal["current", "reference"]
    ) -> npt.NDArray[np.float32]:
        """Log-probs under the table."""
        table = _log_softmax(self._logits / batch.temperature)
        result = table[self._positions(batch), batch.tokens].astype(np.float32)
        result[batch.offsets[:-1]] = 0.0
        return result

    def values(self, batch: Batch) -> npt.NDArray[np.float32]:
        """A table has no critic: zero."""
        return np.zeros(len(batch.tokens), np.float32)

    def step(self, batch: Batch, algorithm: Algorithm, step: int) -> dict[str, float]:
        """Ascend the weighted sum of advantage × log-prob."""
        time.sleep(self._config.step_s)
        if step == self._config.nan_at:
            raise NonFiniteLoss("the loss is nan")
        if step == self._config.crash_at:
            raise SystemExit("the trainer was ordered to crash")
        assert batch.advantages is not None
        share = np.where(batch.loss_mask, batch.weights["policy"] * batch.advantages, 0.0)
        loss = -float((share * self.logprobs(batch, "current")).sum())
        if not math.isfinite(loss):
            raise NonFiniteLoss(f"the loss is {loss}; the table stays as it was")
        positions = self._positions(batch)
        gradient = np.zeros_like(self._logits)
        np.add.at(gradient, (positions, batch.tokens), share)
        pulled = np.bincount(positions, weights=share, minlength=POSITIONS)
        gradient -= pulled[:, None] * np.exp(_log_softmax(self._logits / batch.temperature))
        gradient /= batch.temperature
        self._logits += self._config.lr * gradient
        return {
            "loss": loss,
            "grad_norm": float(np.linalg.norm(gradient)),
            "lr": self._config.lr,
            "tokens": float(len(batch.tokens)),
        }

    def export(self) -> Iterator[ExportedTensor]:
        """One tensor."""
        table = self._logits.astype(np.float32)
        yield ExportedTensor("logits", "F32", table.shape, table)

    def save(self, directory: Path) -> None:
        """The table as safetensors."""
        save_file({"logits": np.asarray(self._logits)}, directory / "table.safetensors")

    def load(self, directory: Path) -> None:
        """Restore it."""
        self._logits = load_file(directory / "table.safetensors")["logits"]

    def adopt(self, model: Path, steps: int) -> None:
        """The table of the folder."""
        self._logits = _table(model)

    def save_model(self, directory: Path) -> None:
        """The table beside the config and tokenizer of the model that it took its vocabulary from."""
        for file in self._model.glob("*.json"):
            (directory / file.name).write_bytes(file.read_bytes())
        save_file({"logits": self._logits.astype(np.float32)}, directory / "model.safetensors")

    def close(self) -> None:
        """Nothing to free."""


class TableAlgorithm:
    """REINFORCE with the group's mean as baseline, token mean over the mini-batch (Williams 1992)."""

    capabilities: frozenset[str] = frozenset()

    def __init__(self, config: None, context: ComponentContext) -> None:
        self.needs: frozenset[str] = frozenset()

    def advantages(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Reward minus the group's mean, the same for each token of a row."""
        return batch.spread(batch.rewards - batch.group_mean)

    def weights(self, batch: Batch) -> dict[str, npt.NDArray[np.float32]]:
        """Equal shares of the trained tokens."""
        share = batch.loss_mask / max(batch.trained_tokens, 1)
        return {"policy": share.astype(np.float32)}

    def loss(self, inputs: LossInputs) -> Loss:
        """The same objective for a trainer with tensors."""
        weighted: Any = inputs.weights["policy"] * inputs.advantages * inputs.logprobs
        return Loss({"policy": (-1.0, weighted.sum())})
