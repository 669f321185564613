"""A trainer under test, its batches, and the reference for its numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from astraflow_core.protocols.algorithm import Algorithm
from astraflow_core.protocols.trainer import Trainer
from astraflow_core.types import (
    Batch,
    ExportedTensor,
    Loss,
    LossInputs,
)
from astraflow_core.types.weights import DTYPE_BYTES
from astraflow_testing.conformance._checks import Demands
from astraflow_testing.conformance._models import qwen3
from astraflow_testing.conformance._models.qwen3 import Floats, log_softmax
from astraflow_testing.conformance._models.weights import as_floats
from astraflow_testing.conformance.subject import Subject, context

DEMANDS = Demands("astraflow_core/protocols/trainer")
VOCABULARY = 27

Reference = Callable[[Path, Batch], Floats]
"""``(safetensors file, batch)`` → logits float64 ``[N, V]`` of the distribution that each token had before
it came, not yet divided by the temperature; anything at the first token of a row."""

Exported = dict[str, ExportedTensor]


@dataclass
class TrainerRig:
    """Builds trainers on ``model`` and closes them."""

    component: Subject
    model: Path
    directory: Path
    built: list[Trainer] = field(default_factory=list)

    @property
    def variants(self) -> list[str]:
        """Labels of the configurations, the one that most tests use first."""
        return list(self.component.variants)

    def build(
        self,
        variant: str = "",
        needs: frozenset[str] = frozenset(),
        model: Path | None = None,
    ) -> Trainer:
        """A trainer that was set up for ten steps."""
        factory = self.component.variants[variant or self.variants[0]]
        trainer: Trainer = factory(context("trainer", self.directory, seed=7))
        trainer.setup(self.model if model is None else model, 10, needs)
        self.built.append(trainer)
        return trainer

    def folder(self, name: str) -> Path:
        """An empty folder."""
        folder = self.directory / name
        folder.mkdir()
        return folder


class PolicyGradient:
    """``-sum w A logp``, and a part for everything else that is needed; remembers what it was given.

    Made of arithmetic alone, so that it works on tensors of any framework.
    """

    def __init__(self, needs: Iterable[str] = ()) -> None:
        self.needs = frozenset(needs)
        self.seen: list[LossInputs] = []

    def advantages(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Reward minus the group's mean."""
        return batch.spread(batch.rewards - batch.group_mean)

    def weights(self, batch: Batch) -> dict[str, npt.NDArray[np.float32]]:
        """Equal shares of the mini-batch's trained tokens."""
        share = batch.loss_mask / max(1, batch.trained_tokens)
        return {"policy": share.astype(np.float32)}

    def loss(self, inputs: LossInputs) -> Loss:
        """The terms."""
        self.seen.append(inputs)
        weight, logprobs = inputs.weights["policy"], inputs.logprobs
        terms = {"policy": (-1.0, (weight * inputs.advantages * logprobs).sum())}
        if "reference" in self.needs:
            gap = logprobs - inputs.reference
            terms["reference"] = (0.1, (weight * gap * gap).sum())
        if "proximal" in self.needs:
            gap = logprobs - inputs.proximal
            terms["proximal"] = (0.1, (weight * gap * gap).sum())
        if "entropy" in self.needs:
            terms["entropy"] = (-0.01, (weight * inputs.entropy).sum())
        return Loss(terms, {"mean_logprob": _detached((weight * logprobs).sum())})


def ragged_batch(seed: int = 0, rows: int = 10, temperature: float = 0.8) -> Batch:
    """Rows of 2 to 14 tokens with holes in the loss mask, one row of one token, one untrained row."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(2, 15, rows).astype(np.int32)
    lengths[rows // 2] = 1
    total = int(lengths.sum())
    starts = np.cumsum(lengths) - lengths
    mask = rng.random(total) < 0.6
    mask[starts] = False
    mask[starts[0] : starts[0] + lengths[0]] = False
    rewards = rng.random(rows).astype(np.float32)
    return Batch(
        id=f"conformance-{seed}",
        policy="p",
        version=1,
        lengths=lengths,
        tokens=rng.integers(2, VOCABULARY, total).astype(np.int32),
        loss_mask=mask,
        logprobs=np.where(mask, -3 - rng.random(total), 0).astype(np.float32),
        versions=np.where(mask, 0, -1).astype(np.int32),
        rewards=rewards,
        group=np.zeros(rows, dtype=np.int64),
        trajectory=np.arange(rows, dtype=np.int64),
        group_size=np.full(rows, rows, dtype=np.int32),
        group_mean=np.full(rows, rewards.mean(), dtype=np.float32),
        group_std=np.full(rows, rewards.std(ddof=1), dtype=np.float32),
        temperature=temperature,
    )


def ready(trainer: Trainer, batch: Batch, algorithm: Algorithm) -> Batch:
    """``batch`` with everything that the loop of a trainer fills in before :meth:`Trainer.step`."""
    if "reference" in algorithm.needs:
        batch = replace(batch, reference=trainer.logprobs(batch, "reference"))
    if "proximal" in algorithm.needs:
        batch = replace(batch, proximal=trainer.logprobs(batch, "current"))
    batch = replace(batch, advantages=algorithm.advantages(batch))
    return replace(batch, weights=algorithm.weights(batch))


def train(trainer: Trainer, seeds: Iterable[int]) -> list[dict[str, float]]:
    """A step on each of the batches of ``seeds``; the seed is the step's number too."""
    algorithm = PolicyGradient()
    return [
        trainer.step(ready(trainer, ragged_batch(seed), algorithm), algorithm, seed)
        for seed in seeds
    ]


def exported(trainer: Trainer) -> Exported:
    """The whole export; fails if a tensor of it is malformed."""
    tensors: Exported = {}
    for tensor in trainer.export():
        data = memoryview(tensor.data).cast("B").tobytes()
        size = math.prod(tensor.shape) * DTYPE_BYTES.get(tensor.dtype, 0)
        DEMANDS.that(
            tensor.dtype in DTYPE_BYTES and len(data) == size,
            f"export() gives {tensor.name} as {tensor.dtype} {tensor.shape} in {len(data)} bytes",
            "a safetensors dtype and prod(shape) · itemsize bytes",
        )
        DEMANDS.that(
            tensor.name not in tensors, f"export() gives {tensor.name} twice", "each tensor once"
        )
        tensors[tensor.name] = replace(tensor, data=data)
    return tensors


def flat(tensors: Exported) -> Floats:
    """All values, in the order of their names."""
    return np.concatenate([as_floats(tensors[name]).reshape(-1) for name in sorted(tensors)])


def same_update(before: Exported, one: Exported, other: Exported, share: float) -> tuple[bool, str]:
    """Whether two updates from ``before`` differ by at most ``share`` of their size, in words."""
    start = flat(before)
    update, difference = flat(one) - start, flat(other) - flat(one)
    size, apart = float(np.linalg.norm(update)), float(np.linalg.norm(difference))
    return apart <= share * size, f"updates of norm {size:.3g} differ by {apart:.3g}"


def tiny_model_logits(folder: Path) -> Reference:
    """The reference for the tiny model in ``folder``."""

    def logits(file: Path, batch: Batch) -> Floats:
        result = np.zeros((len(batch.tokens), VOCABULARY))
        for start, end in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
            if end - start > 1:
                ids = batch.tokens[start : end - 1]
                result[start + 1 : end] = qwen3.logits(folder, [(file, ids)])
        return result

    return logits


def token_logprobs(logits: Floats, batch: Batch) -> Floats:
    """Log-prob of each token ``[N]`` at the batch's temperature, 0 at the first of a row."""
    result = log_softmax(logits / batch.temperature)[np.arange(len(batch.tokens)), batch.tokens]
    result[batch.offsets[:-1]] = 0.0
    return result


def entropies(logits: Floats, batch: Batch) -> Floats:
    """Entropy in nats of each token's distribution ``[N]`` at the batch's temperature."""
    logprobs = log_softmax(logits / batch.temperature)
    return np.asarray(-(np.exp(logprobs) * logprobs).sum(-1))


def to_numpy(tensor: Any) -> npt.NDArray[Any]:
    """A tensor of any framework on any device."""
    tensor = _detached(tensor)
    return np.asarray(tensor.cpu() if hasattr(tensor, "cpu") else tensor)


def _detached(tensor: Any) -> Any:
    return tensor.detach() if hasattr(tensor, "detach") else tensor
