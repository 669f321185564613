"""The inputs and the result of a loss; tensors are those of the trainer's framework."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Tensor = Any
"""A tensor of the trainer's framework (``torch.Tensor`` in all first-party trainers)."""


@dataclass(frozen=True, slots=True)
class LossInputs:
    """One micro-batch of ``N`` token positions, packed, in row order.

    All tensors are ``[N]`` on the trainer's device, float32 unless said. ``logprobs`` of the current
    policy, with gradient; ``entropy`` of its distribution at the position, with gradient, if the
    algorithm needs it; ``behaviour``, ``proximal``, ``reference``, ``values`` (if needed) without;
    ``predicted_values``, if the algorithm needs values, what the value model gives now, with gradient;
    ``advantages``; ``mask`` bool, the trained positions (a trainer may leave out all others); ``row``
    int64, the row of each position within the micro-batch, ``rows`` their number; ``weights``: term →
    each position's share, 0 where not trained, fixed for the whole mini-batch before the first backward
    pass. ``step`` counts the updates of the run, for schedules.
    """

    logprobs: Tensor
    behaviour: Tensor
    advantages: Tensor
    mask: Tensor
    row: Tensor
    rows: int
    weights: dict[str, Tensor]
    step: int
    entropy: Tensor | None = None
    proximal: Tensor | None = None
    reference: Tensor | None = None
    values: Tensor | None = None
    current: Tensor | None = None
    predicted_values: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Loss:
    """``terms``: name → (coefficient, weighted sum over the micro-batch, a scalar tensor); the trainer
    minimises the sum of coefficient × weighted sum over all micro-batches. ``metrics``: name → scalar
    tensor without gradient that *adds up* over micro-batches (a weighted sum, not a mean). Where both
    ``NAME_mean`` and ``NAME_square_mean`` of importance weights are given, the effective sample size
    ``NAME_ess`` is computed from them after the sum and shown instead of the latter."""

    terms: dict[str, tuple[float, Tensor]]
    metrics: dict[str, Tensor] = field(default_factory=dict)
