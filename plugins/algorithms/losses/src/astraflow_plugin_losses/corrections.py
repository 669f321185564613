"""Off-policy corrections: weights of tokens, without gradient."""

from __future__ import annotations

import torch

from astraflow_plugin_losses.config import Correction
from astraflow_plugin_losses.tensors import at_level, k3, row_max, row_mean, row_sum


def correction_weights(
    correction: Correction,
    log_weight: torch.Tensor,
    mask: torch.Tensor,
    row: torch.Tensor,
    rows: int,
) -> torch.Tensor:
    """Weights ``[N]`` of ``w = exp(log_weight)``, ``log_weight`` = proximal - behaviour, 0 outside ``mask``.

    ``truncate`` at token level is TIS (Yao et al. 2025), at sequence level the product of ratios as in verl
    0.9.1 and TRL 1.16.0 (a lower bound too: AReaL's ``clamp``); ``mask`` is IcePop (Ling Team 2025); ``geometric`` uses the mean log-ratio of the
    row for test and weight (AReaL 1.0.4). An ``estimator`` rejects by the KL, as ``rollout_rs`` of verl 0.9.1. What is
    masked or rejected stays in the denominator of means.
    """
    fixed = log_weight.detach()
    if correction.estimator != "ratio":
        return (_divergence(correction, fixed, mask, row, rows) <= correction.high).to(fixed.dtype)
    assert correction.level != "max", "refused by the keys"
    weight = at_level(fixed, correction.level, mask, row, rows).exp()
    if correction.mode == "truncate":
        return weight.clamp(correction.low, correction.high)
    kept = (weight >= correction.low) & (weight <= correction.high)
    inside = weight if correction.mode == "mask" else torch.ones_like(weight)
    return torch.where(kept, inside, torch.zeros_like(weight))


def _divergence(
    correction: Correction,
    log_weight: torch.Tensor,
    mask: torch.Tensor,
    row: torch.Tensor,
    rows: int,
) -> torch.Tensor:
    """``token_k2`` and ``_k3`` (``[N]``) of verl 0.9.1, or their ``seq_sum``, ``seq_mean`` or ``seq_max``."""
    bounded = log_weight.clamp(-20, 20)
    value = bounded.square() / 2 if correction.estimator == "k2" else k3(bounded)
    match correction.level:
        case "sequence":
            return row_sum(value, row, rows)
        case "geometric":
            return row_mean(value, mask, row, rows)
        case "max":
            return row_max(value, row, rows)
    return value


def off_policy_sequences(
    log_ratio: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    row: torch.Tensor,
    rows: int,
    delta: float,
) -> torch.Tensor:
    """1.0, or 0.0 where ``A < 0`` and the row's mean of ``-log_ratio`` (behaviour - current) is above
    ``delta``: the off-policy sequence mask of DeepSeek-V3.2, as TRL 1.16.0 has it. Rows with A ≥ 0 stay."""
    drift = row_mean(-log_ratio.detach(), mask, row, rows)
    return ((advantages >= 0) | (drift <= delta)).to(log_ratio.dtype)
