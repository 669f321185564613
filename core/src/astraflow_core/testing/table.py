"""A policy that is a table of logits: engine, trainer and algorithm without a deep learning framework.

The table model samples token ``t`` of a completion from ``softmax(logits[t])``, whatever the prompt. It
learns a fixed answer by policy gradient, so a whole run with it is real in everything but the model, and
starts in a second. Named in a config as ``use = "astraflow_core.testing.table:TableEngine"`` and so on.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field
from safetensors.numpy import load_file, save_file

from astraflow_core.config.models import ConfigModel
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


def _log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)), dtype=np.float64)


class TableEngineConfig(ConfigModel):
    """Keys of :class:`TableEngine`."""

    token_s: Annotated[float, Field(ge=0)] = Field(0.0, description="Seconds per decoding step.")
    start_s: Annotated[float, Field(ge=0)] = Field(0.0, description="Seconds to start.")


class TableEngine:
    """Samples from the table, one token of every running request per decoding step. Truncation
    (top-p, top-k, min-p) is not offered."""

    Config = TableEngineConfig
    capabilities = frozenset(
        {"score", "pause.keep", "pause.wait", "pause.abort", "weights.path", "weights.inflight"}
    )

    def __init__(self, config: TableEngineConfig, context: ComponentContext) -> None:
        self._config = config
        self._rng = np.random.default_rng(context.seed)
        self._logits: Floats = np.zeros((POSITIONS, 1))
        self._eos, self._version = -1, -1
        self._running: dict[str, _Running] = {}
        self._go = asyncio.Event()
        self._go.set()
        self._admit = asyncio.Event()
        self._admit.set()
        self._stepping: asyncio.Task[None] | None = None
        self._tokens = self._prompt_tokens = 0

    @property
    def logprob_semantics(self) -> LogprobSemantics:
        """Temperature applied, no truncation."""
        return LogprobSemantics(temperature=True, truncation=False)

    @property
    def context_length(self) -> int:
        """A table has room for little."""
        return 128

    async def start(self, model: Path) -> None:
        """A table of zeros over the model's vocabulary: uniform."""
        await asyncio.sleep(self._config.start_s)
        self._logits = np.zeros((POSITIONS, _vocabulary(model)))
        self._eos = _end(model)
        self._version = 0

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """See :class:`astraflow_core.protocols.engine.Engine`."""
        if len(request.prompt) + request.sampling.max_tokens > self.context_length:
            raise ValueError(
                f"{len(request.prompt)} prompt tokens + {request.sampling.max_tokens} are over the "
                f"context of {self.context_length}"
            )
        await self._admit.wait()
        if request.pinned_version not in (None, self._version):
            raise WrongVersion(f"pinned to {request.pinned_version}, serving {self._version}")
        running = self._running[request.id] = _Running(request)
        self._prompt_tokens += len(request.prompt)
        if self._stepping is None or self._stepping.done():
            self._stepping = asyncio.create_task(self._step_until_idle())
        return await running.future

    async def _step_until_idle(self) -> None:
        while self._running:
            await self._go.wait()
            await asyncio.sleep(self._config.token_s)
            if not self._go.is_set():
                continue
            for running in list(self._running.values()):
                self._sample(running)

    def _sample(self, running: _Running) -> None:
        sampling = running.request.sampling
        row = self._logits[min(len(running.tokens), POSITIONS - 1)]
        if sampling.temperature == 0:
            token = int(row.argmax())
            logprob = float(_log_softmax(row)[token])
        else:
            logprobs = _log_softmax(row / sampling.temperature)
            token = int(self._rng.choice(len(row), p=np.exp(logprobs) / np.exp(logprobs).sum()))
            logprob = float(logprobs[token])
        running.tokens.append(token)
        running.logprobs.append(logprob)
        running.versions.append(self._version)
        self._tokens += 1
        stops = token in sampling.stop_token_ids or (token == self._eos and not sampling.ignore_eos)
        if stops or len(running.tokens) == sampling.max_tokens:
            self._finish(running, "stop" if stops else "length")

    def _finish(self, running: _Running, reason: FinishReason) -> None:
        del self._running[running.request.id]
        if not running.future.done():
            running.future.set_result(running.result(reason))

    async def score(self, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        """The table has no prompt: position ``t`` is scored by row ``t - 1``."""
        rows = np.minimum(np.arange(len(tokens) - 1), POSITIONS - 1)
        scored = _log_softmax(self._logits)[rows, tokens[1:]]
        return np.concatenate([[0.0], scored]).astype(np.float32)

    async def pause(self, mode: PauseMode) -> None:
        """See :class:`astraflow_core.protocols.engine.Engine`."""
        self._admit.clear()
        if mode == "wait":
            while self._running and self._go.is_set():
                await asyncio.sleep(0.001)
        self._go.clear()
        if mode == "abort":
            await self.abort(list(self._running))

    async def resume(self) -> None:
        """Go on."""
        self._go.set()
        self._admit.set()

    async def abort(self, ids: list[str]) -> None:
        """End the named requests with what they have."""
        for identifier in ids:
            if identifier in self._running:
                self._finish(self._running[identifier], "abort")

    async def load_weights(self, source: WeightSource) -> None:
        """A version is one tensor ``logits``."""
        tensors = load_file(source.path)
        if set(tensors) != {"logits"} or tensors["logits"].shape != self._logits.shape:
            raise WeightsError(
                f"version {source.version}: expected one tensor 'logits' {self._logits.shape}, got "
                f"{ {name: tensor.shape for name, tensor in tensors.items()} }"
            )
        self._logits = tensors["logits"].astype(np.float64)
        self._version = source.version

    async def sleep(self, level: int) -> None:
        """Nothing to give back."""

    async def wake(self) -> None:
        """Nothing to take."""

    async def health(self) -> dict[str, float]:
        """Gauges and counters."""
        return {
            "running": len(self._running),
            "waiting": 0,
            "version": self._version,
            "tokens_generated": self._tokens,
            "prompt_tokens": self._prompt_tokens,
            "decode_seconds": 0.0,
        }

    async def close(self) -> None:
        """End everything."""
        await self.abort(list(self._running))
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
    """Ascends the policy gradient of the table, with the exact derivative of the log-softmax."""

    Config = TableTrainerConfig
    capabilities = frozenset({"proximal", "checkpoint"})

    def __init__(self, config: TableTrainerConfig, context: ComponentContext) -> None:
        self._config = config
        self._logits: Floats = np.zeros((POSITIONS, 1))
        self._model = Path()

    def setup(self, model: Path, total_steps: int, needs: frozenset[str]) -> None:
        """A table of zeros over the model's vocabulary."""
        self._model = model
        self._logits = np.zeros((POSITIONS, _vocabulary(model)))

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
        return table[self._positions(batch), batch.tokens].astype(np.float32)

    def values(self, batch: Batch) -> npt.NDArray[np.float32]:
        """A table has no critic: zero."""
        return np.zeros(len(batch.tokens), np.float32)

    def step(self, batch: Batch, algorithm: Algorithm, step: int) -> dict[str, float]:
        """Ascend the weighted sum of advantage × log-prob."""
        time.sleep(self._config.step_s)
        if step == self._config.nan_at:
            raise NonFiniteLoss("the loss is nan")
        if step == self._config.crash_at:
            raise SystemExit("the trainer was told to crash")
        assert batch.advantages is not None
        share = batch.weights["policy"] * batch.advantages * batch.loss_mask
        positions = self._positions(batch)
        gradient = np.zeros_like(self._logits)
        np.add.at(gradient, (positions, batch.tokens), share)
        pulled = np.bincount(positions, weights=share, minlength=POSITIONS)
        gradient -= pulled[:, None] * np.exp(_log_softmax(self._logits))
        self._logits += self._config.lr * gradient
        logprobs = self.logprobs(batch, "current")
        return {
            "loss": -float((share * logprobs).sum()),
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
