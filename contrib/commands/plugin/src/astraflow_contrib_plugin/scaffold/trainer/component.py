"""The trainer ``sample_thing``."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field
from safetensors.numpy import load_file, save_file

from astraflow_core.config.models import ConfigModel
from astraflow_core.errors import NonFiniteLoss
from astraflow_core.protocols.algorithm import Algorithm
from astraflow_core.types import Batch, ComponentContext, ExportedTensor

POSITIONS = 16
STATE = "state.safetensors"

Floats = npt.NDArray[np.float64]


class SampleThingConfig(ConfigModel):
    """``trainer = { use = "sample_thing" }``"""

    lr: float = Field(100.0, gt=0, description="Step size of the gradient ascent.")


class SampleThing:
    """Trains a table: token ``t`` of a completion has the log-probs ``log_softmax(logits[t])``, whatever the prompt.

    Each step ascends the gradient of ``sum(weight * advantage * log-prob)`` (Williams 1992) in closed form, with the
    weights ``policy`` and the advantages of the algorithm. It does not call the loss of the algorithm, which takes
    tensors of a framework with gradients; a trainer that has one makes its inputs from the batch and calls it.
    """

    def __init__(self, config: SampleThingConfig, context: ComponentContext) -> None:
        self._lr = config.lr
        self._model = Path()
        self._logits: Floats = np.zeros((POSITIONS, 1))

    def setup(self, model: Path, total_steps: int, needs: frozenset[str]) -> None:
        """The table in the folder, or one of zeros over the vocabulary of another model."""
        self._model = model
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        self._logits = np.zeros((POSITIONS, int(config["vocab_size"])))
        file = model / "model.safetensors"
        tensors = load_file(file) if file.exists() else {}
        if "logits" in tensors:
            self._logits = tensors["logits"].astype(np.float64)

    def logprobs(
        self, batch: Batch, model: Literal["current", "reference"]
    ) -> npt.NDArray[np.float32]:
        """Float32 ``[N]``, 0 at the first token of a row."""
        table = self._table(batch.temperature)
        found = table[self._rows(batch), batch.tokens].astype(np.float32)
        found[batch.offsets[:-1]] = 0.0
        return np.asarray(found, np.float32)

    def values(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Not declared among the capabilities."""
        raise RuntimeError("the trainer lacks the capability 'values'")

    def step(self, batch: Batch, algorithm: Algorithm, step: int) -> dict[str, float]:
        """One step of gradient ascent."""
        assert batch.advantages is not None
        share = np.where(batch.loss_mask, batch.weights["policy"] * batch.advantages, 0.0)
        loss = -float((share * self.logprobs(batch, "current")).sum())
        if not math.isfinite(loss):
            raise NonFiniteLoss(f"the loss is {loss}")
        gradient = self._gradient(batch, share)
        self._logits = self._logits + self._lr * gradient
        return {
            "loss": loss,
            "grad_norm": float(np.linalg.norm(gradient)),
            "lr": self._lr,
            "tokens": float(len(batch.tokens)),
        }

    def _gradient(self, batch: Batch, share: Floats) -> Floats:
        """Of ``sum(share * log-prob)``: the derivative of a log-softmax is the chosen token minus the distribution."""
        rows, temperature = self._rows(batch), batch.temperature
        gradient = np.zeros_like(self._logits)
        np.add.at(gradient, (rows, batch.tokens), share)
        total = np.bincount(rows, weights=share, minlength=POSITIONS)
        gradient -= total[:, None] * np.exp(self._table(temperature))
        result: Floats = gradient / temperature
        return result

    def _table(self, temperature: float) -> Floats:
        """Log-probs ``[positions, vocabulary]``."""
        logits = self._logits / temperature
        shifted = logits - logits.max(-1, keepdims=True)
        result: Floats = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        return result

    def _rows(self, batch: Batch) -> npt.NDArray[np.int64]:
        """The row of the table for each token: the trained tokens before it in its sequence."""
        trained = batch.loss_mask.astype(np.int64)
        before = np.cumsum(trained) - trained
        first = before[batch.offsets[:-1]][batch.row_of_token]
        return np.minimum(before - first, POSITIONS - 1)

    def export(self) -> Iterator[ExportedTensor]:
        """One tensor."""
        table = self._logits.astype(np.float32)
        yield ExportedTensor("logits", "F32", table.shape, table)

    def save(self, directory: Path) -> None:
        """The table in float64; there is no other state."""
        save_file({"logits": self._logits}, directory / STATE)

    def load(self, directory: Path) -> None:
        """What :meth:`save` wrote."""
        self._logits = load_file(directory / STATE)["logits"]

    def save_model(self, directory: Path) -> None:
        """The table, with config and tokenizer of the model that gave the vocabulary."""
        for file in self._model.glob("*.json"):
            (directory / file.name).write_bytes(file.read_bytes())
        save_file({"logits": self._logits.astype(np.float32)}, directory / "model.safetensors")

    def close(self) -> None:
        """There is nothing to free."""
