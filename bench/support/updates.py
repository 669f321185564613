"""Two versions of bf16 weights as training with Adam leaves them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

RATES: Mapping[str, float] = {"lr1e6": 1e-6, "lr3e6": 3e-6, "lr5e6": 5e-6}
MINI_BATCHES = 4
"""Optimizer steps between two versions."""
_WARM, _SNR, _DAMP = 40, 0.1, 10.0


def simulated(count: int) -> dict[str, tuple[Any, Any]]:
    """Learning rate → uint16 bit patterns of two successive versions of ``count`` weights.

    float32 masters N(0, 0.01 to 0.04) by tensor, AdamW, noisy gradients with a weak persistent direction, and
    second moments that remember gradients ten times as large, which gives the densities that were published for
    these rates (0.4, 1.1 and 2.2 %).
    """
    generator = np.random.default_rng(0)
    scales = generator.choice(
        np.array([0.01, 0.015, 0.02, 0.02, 0.03, 0.04], np.float32), count >> 16
    )
    start = generator.standard_normal(count, dtype=np.float32) * np.repeat(scales, 1 << 16)
    direction = generator.standard_normal(count, dtype=np.float32) * np.float32(_SNR)
    weights = {name: start.copy() for name in RATES}
    first, second = np.zeros(count, np.float32), np.full(count, _DAMP**2, np.float32)
    gradient, before = np.empty(count, np.float32), {}
    for step in range(_WARM + MINI_BATCHES):
        if step == _WARM:
            before = {name: bfloat16(each) for name, each in weights.items()}
        generator.standard_normal(out=gradient, dtype=np.float32)
        gradient += direction
        first *= np.float32(0.9)
        first += np.float32(0.1) * gradient
        second *= np.float32(0.999)
        second += np.float32(0.001) * gradient * gradient
        time = 2001 + step
        update = np.sqrt(second / np.float32(1 - 0.999**time))
        update += np.float32(1e-8)
        np.divide(first, update, out=update)
        update /= np.float32(1 - 0.9**time)
        for name, rate in RATES.items():
            weights[name] -= np.float32(rate * 0.01) * weights[name]
            weights[name] -= np.float32(rate) * update
    return {name: (before[name], bfloat16(each)) for name, each in weights.items()}


def uniform(count: int, density: float, seed: int = 1) -> tuple[Any, Any]:
    """Random weights, a share ``density`` of them moved by one unit in the last place."""
    generator = np.random.default_rng(seed)
    old = generator.integers(0, 1 << 16, count, dtype=np.uint16)
    new = old.copy()
    for start in range(0, count, 1 << 22):
        part = new[start : start + (1 << 22)]
        where = np.flatnonzero(generator.random(len(part), dtype=np.float32) < density)
        part[where] += generator.choice(np.array([1, 65535], np.uint16), len(where))
    return old, new


def bfloat16(values: Any) -> Any:
    """Bit patterns of float32 values rounded to nearest even."""
    pattern = values.view(np.uint32)
    odd = (pattern >> np.uint32(16)) & np.uint32(1)
    return ((pattern + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype(np.uint16)
