"""Bounds out of the second moment of log-ratios: pure functions of tensors, nothing waits for the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy.typing as npt
import torch

WIDEST = (0.95, 20.0)
"""The clip of ``clip_range_astraflow`` is never wider than this, and is this without excess."""
NARROWEST = (0.3, 0.5)
"""The clip of ``clip_range_m2po_repo`` is never narrower than this."""
NO_CLIP = (1.0, 99_999.0)
"""No clip of the M2PO repository: ratios from 0 to 100,000."""

Bounds = tuple[torch.Tensor, torch.Tensor]


def on_host(function: Callable[..., Any], *arrays: npt.NDArray[Any]) -> Any:
    """``function`` of tensors, for arrays of the whole mini-batch: its tensors as arrays."""
    result = function(*(torch.tensor(array) for array in arrays))
    if isinstance(result, tuple):
        return tuple(part.numpy() for part in result)
    return result.numpy()


def harmful(log_ratio: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Tokens that the clip of PPO concerns: A > 0 and r > 1, or A < 0 and r < 1: bool ``[N]``."""
    return mask & (log_ratio * advantages.sign() > 0)


def tolerated(moment: torch.Tensor, counted: torch.Tensor, threshold: float) -> torch.Tensor:
    """The largest of the ``counted`` moments (``[N]``) that are left when the largest are dropped until the
    mean of the rest is below ``threshold``, or one is left: a scalar, inf if none is counted."""
    ordered, _ = moment.masked_fill(~counted, torch.inf).sort()
    return ordered.index_select(0, (_left(ordered, threshold) - 1).view(1)).squeeze(0)


def left(moment: torch.Tensor, counted: torch.Tensor, threshold: float) -> torch.Tensor:
    """The ``counted`` moments (``[N]``) that are left when the largest are dropped until the mean of the rest is
    below ``threshold``, or one is left: bool ``[N]``. Of equal ones the first are dropped first, as by the stable
    descending sort of AReaL 1.0.4, so that the mean of what is left is below the threshold whatever is equal."""
    # Ascending from the back: of equal moments the last ones come first.
    ordered, places = moment.masked_fill(~counted, torch.inf).flip(0).sort(stable=True)
    kept = torch.arange(len(ordered), device=moment.device) < _left(ordered, threshold)
    return counted & torch.empty_like(kept).scatter(0, places, kept).flip(0)


def _left(ascending: torch.Tensor, threshold: float) -> torch.Tensor:
    """How many of the first moments have a mean below ``threshold``, 1 at least: a scalar."""
    means = ascending.cumsum(0) / torch.arange(1, len(ascending) + 1, device=ascending.device)
    return (means < threshold).sum().clamp(min=1)


def capped(moment: torch.Tensor, counted: torch.Tensor, threshold: float) -> torch.Tensor:
    """The largest of the ``counted`` moments at which all larger ones could be capped so that the mean stays
    below ``threshold``: a scalar, 0 if there is none."""
    ordered, _ = moment.masked_fill(~counted, torch.inf).sort()
    place, count = torch.arange(len(ordered), device=moment.device), counted.sum()
    inside = place < count
    ordered = ordered.masked_fill(~inside, 0.0)
    total = ordered.cumsum(0) + ordered * (count - 1 - place)
    below = (inside & (total < threshold * count)).sum()
    largest = ordered.index_select(0, (below - 1).clamp(min=0).view(1)).squeeze(0)
    return torch.where(below > 0, largest, torch.zeros_like(largest))


def astraflow_bounds(moment: torch.Tensor, counted: torch.Tensor, threshold: float) -> Bounds:
    """(eps_low, eps_high) of AstraFlow 0.1.2, scalars."""
    if not len(moment):
        return moment.new_tensor(WIDEST[0]), moment.new_tensor(WIDEST[1])
    t = tolerated(moment, counted, threshold).sqrt()
    low = torch.expm1(-t).neg().clamp(max=WIDEST[0])
    high = torch.expm1(t).clamp(max=WIDEST[1])
    return _if_in_excess(moment, counted, threshold, (low, high), WIDEST)


def m2po_repo_bounds(moment: torch.Tensor, counted: torch.Tensor, threshold: float) -> Bounds:
    """(eps_low, eps_high) of the M2PO repository, scalars."""
    if not len(moment):
        return moment.new_tensor(NO_CLIP[0]), moment.new_tensor(NO_CLIP[1])
    t = capped(moment, counted, threshold).sqrt()
    low = torch.expm1(-t).neg().clamp(min=NARROWEST[0])
    high = torch.expm1(t).clamp(min=NARROWEST[1])
    return _if_in_excess(moment, counted, threshold, (low, high), NO_CLIP)


def _if_in_excess(
    moment: torch.Tensor,
    counted: torch.Tensor,
    threshold: float,
    bounds: Bounds,
    otherwise: tuple[float, float],
) -> Bounds:
    mean = moment.masked_fill(~counted, 0.0).sum() / counted.sum().clamp(min=1)
    low, high = (
        torch.where(mean > threshold, bound, torch.full_like(bound, other))
        for bound, other in zip(bounds, otherwise, strict=True)
    )
    return low, high
