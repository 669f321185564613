"""Pieces of policy losses: pure functions of tensors ``[N]`` of one dtype, ``[N]`` out."""

from __future__ import annotations

from typing import Literal

import torch


def masked(mask: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """``values`` with 0 where ``mask`` (bool) is not set; what was there, NaN or not, has no influence on
    the result or on gradients."""
    return torch.where(mask, values, 0.0)


def row_sum(values: torch.Tensor, row: torch.Tensor, rows: int) -> torch.Tensor:
    """At each position the sum over its row; ``row`` int64 ``[N]`` in ``range(rows)``."""
    return values.new_zeros(rows).index_add(0, row, values)[row]


def row_mean(
    values: torch.Tensor, mask: torch.Tensor, row: torch.Tensor, rows: int
) -> torch.Tensor:
    """At each position the mean over the trained tokens of its row, 0 in a row without any."""
    count = row_sum(mask.to(values.dtype), row, rows)
    return row_sum(masked(mask, values), row, rows) / count.clamp(min=1)


def row_max(values: torch.Tensor, row: torch.Tensor, rows: int) -> torch.Tensor:
    """At each position the largest of its row; ``values`` are at least 0."""
    return values.new_zeros(rows).scatter_reduce(0, row, values, "amax")[row]


def at_level(
    log_ratio: torch.Tensor,
    level: Literal["token", "sequence", "geometric"],
    mask: torch.Tensor,
    row: torch.Tensor,
    rows: int,
) -> torch.Tensor:
    """The log of the ratio of each token, of their product over the row, or of its geometric mean; ``log_ratio`` is 0
    outside ``mask``."""
    if level == "sequence":
        return row_sum(log_ratio, row, rows)
    return row_mean(log_ratio, mask, row, rows) if level == "geometric" else log_ratio


def binary_kl(behaviour: torch.Tensor, current: torch.Tensor, eps: float) -> torch.Tensor:
    """The KL from the behaviour to the current policy if they only distinguish whether a token is the sampled one
    (DPPO, Qi et al. 2026, arXiv 2602.04879), ``eps`` in both parts of the second logarithm, as in verl 0.9.1. From
    log-probs, which are at most 0."""
    p, q = behaviour.exp(), current.exp()
    others = ((1 - p).clamp(min=0) + eps).log() - ((1 - q).clamp(min=0) + eps).log()
    return p * (behaviour - current) + (1 - p) * others


def clipped_surrogate(
    ratio: torch.Tensor,
    advantages: torch.Tensor,
    clip_low: float | torch.Tensor,
    clip_high: float | torch.Tensor,
    dual_clip: float | None = None,
) -> torch.Tensor:
    """``max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high))``: PPO (Schulman et al. 2017, eq. 7) with separate
    bounds (DAPO, Yu et al. 2025, eq. 10); with ``dual_clip`` at most ``-A · dual_clip`` where A < 0 (Ye et
    al. 2020, eq. 8)."""
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)  # type: ignore[arg-type]
    loss = torch.maximum(-advantages * ratio, -advantages * clipped)
    if dual_clip is None:
        return loss
    return torch.where(advantages < 0, torch.minimum(loss, -advantages * dual_clip), loss)


def clipped(
    ratio: torch.Tensor,
    advantages: torch.Tensor,
    clip_low: float | torch.Tensor,
    clip_high: float | torch.Tensor,
    dual_clip: float | None = None,
) -> torch.Tensor:
    """1.0 where the clip takes the gradient away: ``r < 1 - clip_low`` with ``A < 0``, or ``r > 1 +
    clip_high`` with ``A > 0``, or ``r > dual_clip`` with ``A < 0``; else 0."""
    stopped = ((ratio < 1 - clip_low) & (advantages < 0)) | (
        (ratio > 1 + clip_high) & (advantages > 0)
    )
    if dual_clip is not None:
        stopped = stopped | ((ratio > dual_clip) & (advantages < 0))
    return stopped.to(ratio.dtype)


def importance(name: str, log_ratio: torch.Tensor) -> dict[str, torch.Tensor]:
    """First and second power of ``exp(log_ratio)``, out of which the effective sample size is made; the
    second is held below 1e35, so that it stays finite in float32."""
    weight = log_ratio.exp()
    return {f"{name}_mean": weight, f"{name}_square_mean": weight.clamp(max=3e17).square()}


def k3(log_ratio: torch.Tensor) -> torch.Tensor:
    """``exp(x) - 1 - x``, Schulman's k3 estimator (joschu.net/blog/kl-approx.html), not clamped.

    With ``x = log p - log q`` at samples of ``q`` its mean estimates ``KL(q ‖ p)``; never negative.
    """
    return torch.expm1(log_ratio) - log_ratio


def kl_estimate(
    current: torch.Tensor,
    reference: torch.Tensor,
    estimator: Literal["k1", "k2", "k3", "k1_plus", "k3_plus"],
    clamp: Literal["none", "verl", "areal"] = "none",
) -> torch.Tensor:
    """Schulman's estimators of ``KL(current ‖ reference)`` at samples of ``current``.

    ``k1`` = current - reference, ``k2`` its square / 2, ``k3`` of reference - current. ``…_plus`` has that
    value and the gradient of k2 (verl 0.9.1, ``k1+``, ``k3+``). ``clamp``: ``verl`` clamps the gap of k3 to
    ±20 and its value to ±10; ``areal`` (and AstraFlow 0.1.2) clamps the value of any estimator to ±10.
    """
    gap = current - reference
    if estimator.endswith("_plus"):
        value = kl_estimate(current, reference, "k1" if estimator == "k1_plus" else "k3", clamp)
        straight = gap.square() / 2
        return straight - straight.detach() + value.detach()
    if estimator == "k3":
        opposite = -gap
        value = k3(opposite.clamp(-20, 20) if clamp == "verl" else opposite)
        return value if clamp == "none" else value.clamp(-10, 10)
    value = gap if estimator == "k1" else gap.square() / 2
    return value.clamp(-10, 10) if clamp == "areal" else value


def value_loss(
    predicted: torch.Tensor,
    old: torch.Tensor,
    returns: torch.Tensor,
    clip: float | None,
    kind: Literal["squared", "huber"] = "squared",
) -> tuple[torch.Tensor, torch.Tensor]:
    """``max(l(V - G), l(clip(V, old ± clip) - G))`` with l half the square (verl 0.9.1) or Huber's loss with
    delta 10 (AReaL 1.0.4), and 1.0 where the clipped one is the larger, without gradient."""

    def distance(values: torch.Tensor) -> torch.Tensor:
        error = values - returns
        if kind == "squared":
            return error.square() / 2
        return torch.where(error.abs() < 10, error.square() / 2, 10 * (error.abs() - 5))

    plain = distance(predicted)
    if clip is None:
        return plain, torch.zeros_like(plain)
    clipped = distance(torch.maximum(torch.minimum(predicted, old + clip), old - clip))
    return torch.maximum(plain, clipped), (clipped > plain).to(plain.dtype).detach()
