"""The minimum size of a delta: the entropy of its positions and of its steps."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np


def bits(share: float) -> float:
    """Entropy of a coin, in bits."""
    if share in (0.0, 1.0):
        return 0.0
    return -share * math.log2(share) - (1 - share) * math.log2(1 - share)


@dataclass
class Seen:
    """Adds up the blocks of a delta."""

    elements: int = 0
    changed: int = 0
    size: int = 0
    steps: Counter[int] = field(default_factory=Counter)
    bound_by_block: float = 0.0

    def add(self, elements: int, steps: Any, size: int = 0) -> None:
        """A block of so many elements with these steps, sent in so many bytes."""
        self.elements += elements
        self.changed += len(steps)
        self.size += size
        values, counts = np.unique(steps, return_counts=True)
        self.steps.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
        self.bound_by_block += (
            elements * bits(len(steps) / elements) + _entropy(counts) * len(steps)
        ) / 8

    def bound(self) -> float:
        """Bytes if every position and every step came independently from one distribution."""
        counts = np.array(list(self.steps.values()))
        share = self.changed / self.elements
        return (self.elements * bits(share) + _entropy(counts) * self.changed) / 8

    def figures(self) -> dict[str, float]:
        """For a record."""
        return {
            "density": self.changed / self.elements,
            "one_step": (self.steps[1] + self.steps[-1]) / self.changed,
            "bytes_per_changed": self.size / self.changed,
            "over_bound": self.size / self.bound(),
            "over_bound_by_block": self.size / self.bound_by_block,
            "reference_over_ours": (16 + 6 * self.changed) / self.size,
        }


def _entropy(counts: Any) -> float:
    shares = counts / counts.sum()
    return float(-(shares * np.log2(shares)).sum())
