"""One update: adds what the algorithm needs to the batch, then makes one optimizer step per
mini-batch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from astraflow_core.errors import PreflightError
from astraflow_core.protocols.algorithm import NEEDS, Algorithm
from astraflow_core.seeds import derive_seed
from astraflow_core.types import Batch
from astraflow_core.types.generation import not_recorded
from astraflow_runtime.trainer.updates.checks import check_batch, check_given


def check_needs(
    algorithm: Algorithm, algorithm_name: str, trainer_name: str, has: frozenset[str]
) -> None:
    """Reject an algorithm whose needs the trainer does not meet, before anything is loaded."""
    if unknown := algorithm.needs - NEEDS:
        raise PreflightError(
            f"algorithm {algorithm_name!r} needs {', '.join(sorted(unknown))}, which are unknown; the "
            f"known needs are {', '.join(sorted(NEEDS))}"
        )
    # Current log-probs come from the same pass as proximal ones.
    wanted = {"proximal" if need == "current" else need for need in algorithm.needs}
    if missing := wanted - has:
        raise PreflightError(
            f"algorithm {algorithm_name!r} as configured needs {', '.join(sorted(missing))}; "
            f"trainer {trainer_name!r} does not provide it"
        )


Rows = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


class Computing(Protocol):
    """The part of :class:`astraflow_core.protocols.trainer.Trainer` that an update uses."""

    def logprobs(
        self, batch: Batch, model: Literal["current", "reference"]
    ) -> npt.NDArray[np.float32]:
        """Log-probs of every token."""

    def values(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Values of the states before every token."""

    def logit_gradients(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Squared lengths of the gradients of every token's log-prob by the logits."""

    def step(self, batch: Batch, algorithm: Algorithm, step: int) -> dict[str, float]:
        """One optimizer step."""


class UpdateListener(Protocol):
    """Gets updates."""

    def wants(self, batch: Batch) -> bool:
        """Whether it wants the update of a batch."""

    def trained(self, batch: Batch, step: int, entropies: Floats | None) -> None:
        """The update was made, after ``step`` others. The batch has its advantages and, as far as they were computed, the
        log-probs of reference and proximal policy. ``entropies``: float32 ``[N]``, in nats, of each token when its mini-batch
        was trained on; ``None`` if the loss needed none."""


def prepare(batch: Batch, trainer: Computing, algorithm: Algorithm, proximal: bool = True) -> Batch:
    """The batch with reference and proximal log-probs, values and gradients by the logits, as needed, and its advantages.
    With ``proximal=False``, :func:`spared_proximal` adds the proximal log-probs later.
    """
    check_batch(batch)
    given = {}
    if "reference" in algorithm.needs:
        given["reference"] = trainer.logprobs(batch, "reference")
    if "proximal" in algorithm.needs and proximal:
        alike = _reference_is_current(batch, trainer, algorithm)
        given["proximal"] = given["reference"] if alike else trainer.logprobs(batch, "current")
    if "values" in algorithm.needs:
        given["values"] = trainer.values(batch)
    if "logit_gradients" in algorithm.needs:
        given["logit_gradients"] = trainer.logit_gradients(batch)
    check_given(batch, "the trainer", given)
    batch = replace(batch, **given)  # type: ignore[arg-type]
    advantages = algorithm.advantages(batch)
    check_given(batch, "the algorithm", {"advantages": advantages})
    return replace(batch, advantages=advantages)


def spares_proximal(trainer: Computing, algorithm: Algorithm) -> bool:
    """Whether the first mini-batch, whose weights are those at the start of the update, can use the
    log-probs of its own forward pass as proximal ones.
    """
    early = "current" in algorithm.needs or not getattr(algorithm, "proximal_in_loss", False)
    return (
        "proximal" in algorithm.needs
        and not early
        and bool(getattr(trainer, "proximal_in_step", False))
    )


def _reference_is_current(batch: Batch, trainer: Computing, algorithm: Algorithm) -> bool:
    """Whether the reference log-probs, which are computed anyway, equal those of the current
    weights, on which experts may be imposed.
    """
    alike = bool(getattr(trainer, "reference_is_current", False)) and batch.routed_experts is None
    return alike and "reference" in algorithm.needs


def spared_proximal(
    batch: Batch, trainer: Computing, algorithm: Algorithm, cuts: Sequence[Rows]
) -> Batch:
    """The batch with proximal log-probs for all mini-batches except the first, which needs none."""
    if len(cuts) < 2:
        return batch
    if _reference_is_current(batch, trainer, algorithm):
        return replace(batch, proximal=batch.reference)
    rows = np.sort(np.concatenate(cuts[1:]))
    found = trainer.logprobs(batch.take(rows), "current")
    check_given(batch.take(rows), "the trainer", {"proximal": found})
    proximal = np.zeros(len(batch.tokens), np.float32)
    proximal[np.isin(batch.row_of_token, rows)] = found
    return replace(batch, proximal=proximal)


def mini_batch_rows(batch: Batch, count: int, seed: int) -> list[Rows]:
    """The rows of ``count`` parts of a batch, ascending, nearly equal in number, shuffled by ``seed``."""
    if count == 1:
        return [np.arange(len(batch))]
    order = np.random.default_rng(derive_seed(seed, "mini-batches", batch.id)).permutation(
        len(batch)
    )
    return [np.sort(rows) for rows in np.array_split(order, count) if len(rows)]


def mini_batches(batch: Batch, cuts: Sequence[Rows]) -> Iterator[Batch]:
    """The parts of a batch, cut by :func:`mini_batch_rows`."""
    if len(cuts) == 1:
        yield batch
        return
    for rows in cuts:
        yield batch.take(rows)


def replayed_fraction(batch: Batch) -> float:
    """The share of the trained tokens whose experts were recorded: those of the token before, which they were sampled
    from."""
    assert batch.routed_experts is not None
    missing = not_recorded(batch.routed_experts.dtype)
    before = np.flatnonzero(batch.loss_mask) - 1
    found = (batch.routed_experts[before] != missing).all((1, 2))
    return float(found.mean()) if len(found) else 0.0


def effective_sizes(metrics: Mapping[str, float]) -> dict[str, float]:
    """``NAME_mean`` and ``NAME_square_mean`` of importance weights become ``NAME_mean`` and ``NAME_ess``,
    the effective sample size as a share of the tokens, ``mean² / mean square`` (Kong 1992)."""
    found = dict(metrics)
    for name in metrics:
        stem = name.removesuffix("_square_mean")
        if stem != name and (mean := metrics.get(f"{stem}_mean")) is not None:
            square = found.pop(name)
            found[f"{stem}_ess"] = mean * mean / square if square > 0 else 0.0
    return found


def update(
    batch: Batch,
    trainer: Computing,
    algorithm: Algorithm,
    *,
    parts: int,
    seed: int,
    step: int,
    listener: UpdateListener | None = None,
) -> dict[str, float]:
    """Train on one batch; the metrics are means over its mini-batches, seconds and tokens their
    sums, peaks their maxima. ``listener`` gets the update when it is made.
    """
    started = time.monotonic()
    spares = spares_proximal(trainer, algorithm)
    batch = prepare(batch, trainer, algorithm, proximal=not spares)
    told = batch if listener is not None and listener.wants(batch) else None
    entropies: Floats | None = None
    cuts = mini_batch_rows(batch, parts, seed)
    if spares:
        batch = spared_proximal(batch, trainer, algorithm, cuts)
    ready = time.monotonic()
    collected: dict[str, list[float]] = {}
    for index, part in enumerate(mini_batches(batch, cuts)):
        if spares and index == 0:
            part = replace(part, proximal=None)
        if "current" in algorithm.needs:
            fresh = index == 0 and part.proximal is not None
            current = part.proximal if fresh else trainer.logprobs(part, "current")
            assert current is not None
            check_given(part, "the trainer", {"current": current})
            part = replace(part, current=current)
        weights = algorithm.weights(part)
        check_given(part, "the algorithm", {f"weights[{name!r}]": w for name, w in weights.items()})
        part = replace(part, weights=weights)
        for name, value in effective_sizes(trainer.step(part, algorithm, step)).items():
            collected.setdefault(name, []).append(value)
        if told is not None and index == 0:
            told = _with_logprobs(told, batch.proximal, trainer, cuts)
        if told is not None:
            entropies = _with_entropies(entropies, batch, trainer, cuts[index])
    if listener is not None and told is not None:
        listener.trained(told, step, entropies)
    metrics = {name: _of_all(name, values) for name, values in collected.items()}
    if batch.routed_experts is not None:
        metrics["replayed_fraction"] = replayed_fraction(batch)
    metrics["prepare_s"] = ready - started
    metrics["update_s"] = time.monotonic() - started
    return metrics


def _with_logprobs(
    batch: Batch, proximal: Floats | None, trainer: Computing, cuts: Sequence[Rows]
) -> Batch:
    """The batch with log-probs of the weights at the start of the update, if there are any:
    ``proximal`` ones, and those that the first step computed itself.
    """
    if batch.proximal is not None:
        return batch
    own: Floats | None = getattr(trainer, "step_logprobs", lambda: None)()
    if own is None or (proximal is None and len(cuts) > 1):
        return batch
    if proximal is None:
        return replace(batch, proximal=own)
    filled = proximal.copy()
    filled[np.isin(batch.row_of_token, cuts[0])] = own
    return replace(batch, proximal=filled)


def _with_entropies(
    found: Floats | None, batch: Batch, trainer: Computing, rows: Rows
) -> Floats | None:
    """``found`` with the entropies of the step that has just been made with ``rows``."""
    own: Floats | None = getattr(trainer, "step_entropies", lambda: None)()
    if own is None:
        return found
    found = np.zeros(len(batch.tokens), np.float32) if found is None else found
    found[np.isin(batch.row_of_token, rows)] = own
    return found


def _of_all(name: str, values: Sequence[float]) -> float:
    if name.startswith("peak_"):
        return max(values)
    return sum(values) if name.endswith(("_s", "tokens")) else sum(values) / len(values)
