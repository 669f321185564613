"""Ragged batches and a small algorithm, since plugins never import one another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from astraflow_core.types import Batch, Loss, LossInputs
from astraflow_plugin_torch_trainer.trainer import TorchTrainer

VOCABULARY = 27


class Surrogate:
    """``sum w (-A exp(current - behaviour) + 0.01 (current - reference)² - 0.1 entropy)``: every input that
    a trainer fills has a part in it."""

    def __init__(self, needs: frozenset[str] = frozenset({"entropy", "reference"})) -> None:
        self.needs = needs
        self.seen: list[LossInputs] = []

    def advantages(self, batch: Batch) -> npt.NDArray[np.float32]:
        return batch.spread(batch.rewards - batch.group_mean)

    def weights(self, batch: Batch) -> dict[str, npt.NDArray[np.float32]]:
        share = batch.loss_mask / max(1, batch.trained_tokens)
        return {"policy": share.astype(np.float32)}

    def loss(self, inputs: LossInputs) -> Loss:
        self.seen.append(inputs)
        weight = inputs.weights["policy"]
        ratio = torch.exp(inputs.logprobs - inputs.behaviour)
        terms = {"policy": (1.0, (-weight * inputs.advantages * ratio).sum())}
        if "reference" in self.needs:
            terms["kl"] = (0.01, (weight * (inputs.logprobs - inputs.reference) ** 2).sum())
        if "entropy" in self.needs:
            terms["entropy"] = (-0.1, (weight * inputs.entropy).sum())
        return Loss(terms=terms, metrics={"ratio_mean": (weight * ratio).sum().detach()})


def make_batch(seed: int = 0, rows: int = 10, longest: int = 14, temperature: float = 0.8) -> Batch:
    """Ragged rows, holes in the mask, a row of one token, rows of which nothing is trained."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(2, longest, rows).astype(np.int32)
    lengths[rows // 2] = 1
    total = int(lengths.sum())
    starts = np.cumsum(lengths) - lengths
    mask = rng.random(total) < 0.6
    mask[starts] = False
    mask[starts[0] : starts[0] + lengths[0]] = False
    rewards = rng.random(rows).astype(np.float32)
    return Batch(
        id="b",
        policy="p",
        version=1,
        lengths=lengths,
        tokens=rng.integers(1, VOCABULARY, total).astype(np.int32),
        loss_mask=mask,
        logprobs=np.where(mask, -3 - rng.random(total), 0).astype(np.float32),
        versions=np.where(mask, 0, -1).astype(np.int32),
        rewards=rewards,
        group=np.zeros(rows, dtype=np.int64),
        trajectory=np.arange(rows, dtype=np.int64),
        group_size=np.full(rows, rows, dtype=np.int32),
        group_mean=np.full(rows, rewards.mean(), dtype=np.float32),
        group_std=np.full(rows, rewards.std(), dtype=np.float32),
        temperature=temperature,
    )


def make_branches(seed: int = 0, rows: int = 10, **keys: Any) -> Batch:
    """A :func:`make_batch` in which rows begin as earlier ones do: some with all of one, some with another end, and
    some are one once more."""
    rng = np.random.default_rng(seed + 1)
    batch = make_batch(seed, rows, **keys)
    tokens, lengths = batch.tokens.copy(), batch.lengths
    for row in range(1, rows):
        start, other = int(batch.offsets[row]), int(rng.integers(row))
        most = int(min(lengths[row], lengths[other]))
        shared = int(rng.integers(most + 1)) if rng.random() < 0.5 else most
        first = int(batch.offsets[other])
        tokens[start : start + shared] = tokens[first : first + shared]
    return replace(batch, tokens=tokens)


def prepared(batch: Batch, algorithm: Surrogate, trainer: TorchTrainer) -> Batch:
    if "reference" in algorithm.needs:
        batch = replace(batch, reference=trainer.logprobs(batch, "reference"))
    return replace(batch, advantages=algorithm.advantages(batch), weights=algorithm.weights(batch))
