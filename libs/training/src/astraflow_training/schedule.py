"""The learning rate as a function of the optimizer step."""

from __future__ import annotations

import math
from typing import Literal


def lr_factor(
    step: int,
    total_steps: int,
    schedule: Literal["constant", "linear", "cosine"],
    warmup_steps: int,
    min_ratio: float,
) -> float:
    """Share of the peak learning rate at optimizer step ``step`` (from 0) of ``total_steps``.

    Warm-up: ``(step + 1) / warmup_steps``, so the first step moves and step ``warmup_steps - 1`` has the
    full rate. Then constant, or a decay that would reach ``min_ratio`` at step ``total_steps`` and stays
    there: linear, or half a cosine (Loshchilov & Hutter 2017).
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if schedule == "constant":
        return 1.0
    progress = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
    left = 1.0 - progress if schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return min_ratio + (1.0 - min_ratio) * left
