"""Random choices that a run can repeat."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from random import Random
from typing import Any


class Chance:
    """A generator made from ``context.seed``; its state is of JSON's types."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def happens(self, probability: float) -> bool:
        """True with this probability. A certain outcome draws no number."""
        if probability >= 1:
            return True
        return probability > 0 and self._random.random() < probability

    def sample(self, weights: Sequence[float], count: int) -> list[int]:
        """``count`` different indexes, ascending: each next one is drawn with a probability proportional to
        its weight among those that are left (Efraimidis & Spirakis 2006, algorithm A-Res, in logarithms).
        Weights are finite and ≥ 0; indexes of weight 0 are drawn only if the others do not suffice, the
        last ones first. Needs ``0 <= count <= len(weights)``."""

        def key(index: int) -> tuple[float, int]:
            # One number per index whatever its weight, so that a choice costs the same draws.
            exponential = -math.log(1.0 - self._random.random())
            weight = weights[index]
            return (exponential / weight if weight > 0 else math.inf), -index

        keys = [key(index) for index in range(len(weights))]
        return sorted(heapq.nsmallest(count, range(len(weights)), key=keys.__getitem__))

    def state_dict(self) -> list[int]:
        """The state of the generator."""
        version, words, _ = self._random.getstate()
        return [version, *words]

    def load_state_dict(self, state: Sequence[Any]) -> None:
        """Restore :meth:`state_dict`."""
        version, *words = state
        self._random.setstate((version, tuple(words), None))
