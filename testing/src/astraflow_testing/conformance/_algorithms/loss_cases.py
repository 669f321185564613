"""Batches and losses for the algorithm suite, as a trainer would pass them, made from a seed."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from astraflow_core.protocols.algorithm import Algorithm
from astraflow_core.types import Batch, LossInputs
from astraflow_testing.stamping import stamped, with_named_rewards

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

GROUPS = (4, 3, 1, 4)
"""Sizes of the groups of :func:`make_batch`: the third has one row, the last has equal rewards."""
_CONSTANT_OF_TRAINER = ("reference", "proximal", "values")


@dataclass(frozen=True, slots=True)
class Case:
    """A mini-batch as the trainer's loop completes it, and what the model predicts at its tokens:
    ``logprobs`` and ``entropy``, float64 ``[N]``."""

    batch: Batch
    logprobs: Floats
    entropy: Floats


@dataclass(frozen=True, slots=True)
class LossOutcome:
    """A loss and its gradients: ``terms`` (coefficient × sum) and ``metrics`` by name; ``gradient`` and
    ``entropy_gradient`` of the whole loss, float64 ``[N]``."""

    terms: dict[str, float]
    metrics: dict[str, float]
    gradient: Floats
    entropy_gradient: Floats

    @property
    def loss(self) -> float:
        """What is minimised."""
        return sum(self.terms.values())


def make_batch(seed: int = 0) -> Batch:
    """Ragged rows of four groups (:data:`GROUPS`) with holes in their masks; the second row trains no
    token. Versions are 3 to 5 and the batch updates 5. It has the named rewards
    :data:`astraflow_testing.stamping.NAMED`."""
    rng = np.random.default_rng(seed)
    count = sum(GROUPS)
    lengths = rng.integers(3, 12, count).astype(np.int32)
    total = int(lengths.sum())
    starts = np.cumsum(lengths) - lengths
    mask = rng.random(total) < 0.6
    mask[starts + 1] = True
    mask[starts] = False
    mask[starts[1] : starts[1] + lengths[1]] = False
    group = np.repeat(np.arange(len(GROUPS)), GROUPS)
    rewards = rng.random(count).astype(np.float32)
    rewards[group == len(GROUPS) - 1] = 0.1
    none = np.zeros(count, np.float32)
    batch = Batch(
        id="conformance",
        policy="solver",
        version=5,
        lengths=lengths,
        tokens=rng.integers(0, 50, total).astype(np.int32),
        loss_mask=mask,
        logprobs=np.where(mask, -3 * rng.random(total), 0).astype(np.float32),
        versions=np.where(mask, rng.integers(3, 6, total), -1).astype(np.int32),
        rewards=rewards,
        group=group.astype(np.int64) + 70,
        trajectory=np.arange(count, dtype=np.int64) + 900,
        group_size=none.astype(np.int32),
        group_mean=none,
        group_std=none,
    )
    return stamped(with_named_rewards(batch))


def make_case(algorithm: Algorithm, spread: float = 0.4, side: int = 0, seed: int = 0) -> Case:
    """A mini-batch as the trainer's loop completes it; arguments as of :func:`raw_case`."""
    return complete(algorithm, raw_case(algorithm, spread, side, seed))


def raw_case(algorithm: Algorithm, spread: float = 0.4, side: int = 0, seed: int = 0) -> Case:
    """A mini-batch with what the algorithm needs and nothing else, before its advantages and weights.

    All log-probs of a token lie within ``spread`` nats; with ``side`` ±1 the current policy's are that
    much above or below all others, at every token.
    """
    rng = np.random.default_rng(seed + 1)
    batch = make_batch(seed)
    size = len(batch.tokens)
    common = np.where(batch.loss_mask, batch.logprobs, -2.0) - 4 - spread / 2

    def near(side: int) -> npt.NDArray[np.float32]:
        away = rng.uniform(-1, 1, size)
        away[::3] = np.sign(away[::3]) * rng.uniform(0.999, 1, len(away[::3]))  # near the bounds
        return (common + (side or away) * spread / 2).astype(np.float32)

    batch = replace(batch, logprobs=np.where(batch.loss_mask, near(-side), np.float32(0)))
    given = {
        "reference": near(-side),
        "proximal": near(-side),
        "values": rng.random(size, dtype=np.float32),
        "logit_gradients": np.square(1 - np.exp(common)).astype(np.float32),
    }
    logprobs = near(side).astype(np.float64)
    given["current"] = logprobs.astype(np.float32)
    batch = replace(batch, **{k: v for k, v in given.items() if k in algorithm.needs})
    return Case(batch, logprobs, 3 * rng.random(size))


def complete(algorithm: Algorithm, case: Case) -> Case:
    """The case with advantages and weights, asked for in the order of the trainer's loop."""
    early = replace(case.batch, current=None, advantages=None, weights={})
    batch = replace(early, advantages=algorithm.advantages(early), current=case.batch.current)
    return replace(case, batch=replace(batch, weights=algorithm.weights(batch)))


def tokens_of(batch: Batch, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Positions of the tokens of ``rows``, in that order."""
    bounds = batch.offsets
    return np.concatenate([np.arange(bounds[row], bounds[row + 1]) for row in rows])


def take(case: Case, rows: npt.NDArray[np.int64]) -> Case:
    """The micro-batch made of ``rows``; shares and advantages stay what they were."""
    tokens = tokens_of(case.batch, rows)
    return Case(case.batch.take(rows), case.logprobs[tokens], case.entropy[tokens])


def with_garbage(case: Case, garbage: float, seed: int = 7) -> Case:
    """The case with finite garbage of that size, of either sign, wherever the loss mask is not set."""
    rng = np.random.default_rng(seed)
    mask = case.batch.loss_mask
    size = len(mask)

    def fill(values: Any) -> Any:
        if values is None:
            return None
        wild = garbage * rng.choice([-1.0, 1.0], size)
        return np.where(mask, values, wild).astype(values.dtype)

    batch = case.batch
    names = (
        *("logprobs", "reference", "proximal", "current", "values", "logit_gradients"),
        "advantages",
    )
    dirty: dict[str, Any] = {name: fill(getattr(batch, name)) for name in names}
    dirty["tokens"] = np.where(mask, batch.tokens, rng.integers(0, 50, size)).astype(np.int32)
    return Case(replace(batch, **dirty), fill(case.logprobs), fill(case.entropy))


def inputs_of(
    torch: Any,
    algorithm: Algorithm,
    case: Case,
    dtype: str = "float64",
    step: int = 3,
    positions: npt.NDArray[np.int64] | None = None,
) -> LossInputs:
    """What a trainer passes to ``loss`` for the whole case as one micro-batch, or for some positions."""
    kept = np.arange(len(case.batch.tokens)) if positions is None else positions

    def tensor(values: npt.NDArray[Any] | None, gradient: bool = False) -> Any:
        if values is None:
            return None
        made = torch.tensor(np.ascontiguousarray(values[kept]), dtype=getattr(torch, dtype))
        return made.requires_grad_(gradient)

    batch = case.batch
    assert batch.advantages is not None
    needs = algorithm.needs
    return LossInputs(
        logprobs=tensor(case.logprobs, gradient=True),
        behaviour=tensor(batch.logprobs),
        advantages=tensor(batch.advantages),
        mask=torch.tensor(batch.loss_mask[kept]),
        row=torch.tensor(batch.row_of_token[kept]),
        rows=len(batch),
        weights={term: tensor(share) for term, share in batch.weights.items()},
        step=step,
        entropy=tensor(case.entropy, gradient=True) if "entropy" in needs else None,
        current=tensor(batch.current),
        predicted_values=None if batch.values is None else tensor(batch.values / 2, gradient=True),
        **{name: tensor(getattr(batch, name)) for name in _CONSTANT_OF_TRAINER},
    )


def outcome(torch: Any, algorithm: Algorithm, case: Case, **how: Any) -> LossOutcome:
    """Loss, metrics and gradients of the case; ``how`` as in :func:`inputs_of`."""
    inputs = inputs_of(torch, algorithm, case, **how)
    loss = algorithm.loss(inputs)
    # As a trainer does: a term whose coefficient is 0 takes no part.
    terms = {name: share * value for name, (share, value) in loss.terms.items() if share}
    total = sum(terms.values())
    if torch.is_tensor(total) and total.requires_grad:
        total.backward()

    def gradient(leaf: Any) -> Floats:
        if leaf is None or leaf.grad is None:
            return np.zeros(len(inputs.mask))
        return np.asarray(leaf.grad.detach().double().cpu().numpy())

    return LossOutcome(
        terms={name: value.item() for name, value in terms.items()},
        metrics={name: value.item() for name, value in loss.metrics.items()},
        gradient=gradient(inputs.logprobs),
        entropy_gradient=gradient(inputs.entropy),
    )


def value_of(torch: Any, algorithm: Algorithm, case: Case) -> float:
    """The loss alone."""
    with torch.no_grad():
        loss = algorithm.loss(inputs_of(torch, algorithm, case))
        return float(sum(share * value for share, value in loss.terms.values() if share))


def copies(batch: Batch) -> dict[str, Any]:
    """Its arrays by name, copied."""
    held = ((entry.name, getattr(batch, entry.name)) for entry in fields(batch))
    return {name: value.copy() for name, value in held if isinstance(value, np.ndarray)}


def tensors(torch: Any, inputs: LossInputs) -> dict[str, Any]:
    """All tensors that a loss is given, by name."""
    held = {entry.name: getattr(inputs, entry.name) for entry in fields(inputs)}
    held |= {f"weights[{term}]": share for term, share in inputs.weights.items()}
    return {name: value for name, value in held.items() if torch.is_tensor(value)}


def difference(expected: LossOutcome, found: LossOutcome, exact: bool = False) -> str:
    """Differences beyond rounding in float64 (``exact``: at all); empty if nothing does."""
    relative, absolute = (0.0, 0.0) if exact else (1e-9, 1e-12)
    for part in ("terms", "metrics"):
        want, got = getattr(expected, part), getattr(found, part)
        keys = list(want)
        if want.keys() != got.keys() or not np.allclose(
            [got[key] for key in keys], [want[key] for key in keys], rtol=relative, atol=absolute
        ):
            return f"the {part} from {want} to {got}"
    for part in ("gradient", "entropy_gradient"):
        want, got = getattr(expected, part), getattr(found, part)
        if not np.allclose(got, want, rtol=relative, atol=absolute):
            worst = int(np.nan_to_num(np.abs(got - want), nan=np.inf).argmax())
            what = part.replace("_", " ")
            return f"the {what} at position {worst} from {want[worst]:.6g} to {got[worst]:.6g}"
    return ""
