"""Pieces of policy losses: pure functions of tensors ``[N]`` of one dtype, ``[N]`` out."""

from __future__ import annotations

import torch


def masked(mask: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """``values`` with 0 where ``mask`` (bool) is not set; what was there, NaN or not, has no influence on
    the result or on gradients."""
    return torch.where(mask, values, torch.zeros((), dtype=values.dtype, device=values.device))


def clipped_surrogate(
    log_ratio: torch.Tensor, advantages: torch.Tensor, clip_low: float, clip_high: float
) -> torch.Tensor:
    """``max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high))`` with ``r = exp(log_ratio)``: PPO (Schulman et
    al. 2017, eq. 7) with separate bounds (DAPO, Yu et al. 2025, eq. 10); no dual clip."""
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    return torch.maximum(-advantages * ratio, -advantages * clipped)


def clipped(
    log_ratio: torch.Tensor, advantages: torch.Tensor, clip_low: float, clip_high: float
) -> torch.Tensor:
    """1.0 where the clip takes the gradient away: ``r < 1 - clip_low`` with ``A < 0``, or
    ``r > 1 + clip_high`` with ``A > 0``; else 0."""
    ratio = log_ratio.exp()
    low = (ratio < 1 - clip_low) & (advantages < 0)
    high = (ratio > 1 + clip_high) & (advantages > 0)
    return (low | high).to(log_ratio.dtype)


def k3(log_ratio: torch.Tensor) -> torch.Tensor:
    """``exp(x) - 1 - x``, Schulman's k3 estimator (joschu.net/blog/kl-approx.html), not clamped.

    With ``x = log p - log q`` at samples of ``q`` its mean estimates ``KL(q ‖ p)``; never negative.
    """
    return torch.expm1(log_ratio) - log_ratio
