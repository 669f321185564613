"""Random choices that a run can repeat."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
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

        keys = self._keys(weights)
        # Of equal keys those that come first are taken: the last indexes.
        descending = range(len(keys) - 1, -1, -1)
        return sorted(heapq.nsmallest(count, descending, key=keys.__getitem__))

    def pick(
        self, size: int, count: int, weight: Callable[[int], float], highest: float
    ) -> list[int]:
        """As :meth:`sample` of the weights of ``size`` indexes, looking at few of them if many weights are near the
        ``highest``: an index drawn evenly is taken with the chance weight / highest. After ``size`` tries the rest
        is drawn the other way. A weight above ``highest`` counts as that. Needs ``0 <= count <= size``."""
        uniform, chosen = self._random.random, set[int]()
        for _ in range(size if highest > 0 else 0):
            if len(chosen) == count:
                break
            index = int(uniform() * size)
            if uniform() * highest < weight(index):
                chosen.add(index)
        if len(chosen) < count:
            left = [index for index in range(size) if index not in chosen]
            rest = self.sample([weight(index) for index in left], count - len(chosen))
            chosen.update(left[index] for index in rest)
        return sorted(chosen)

    def order(self, weights: Sequence[float]) -> list[int]:
        """All indexes in a random order, of which the first ``n`` are distributed as :meth:`sample` draws
        them."""
        keys = self._keys(weights)
        return sorted(range(len(keys) - 1, -1, -1), key=keys.__getitem__)

    def _keys(self, weights: Sequence[float]) -> list[float]:
        # One number per index whatever its weight, so that a choice costs the same draws.
        uniform, log = self._random.random, math.log
        drawn = [-log(1.0 - uniform()) for _ in weights]
        return [d / w if w > 0 else math.inf for d, w in zip(drawn, weights, strict=True)]

    def state_dict(self) -> list[int]:
        """The state of the generator."""
        version, words, _ = self._random.getstate()
        return [version, *words]

    def load_state_dict(self, state: Sequence[Any]) -> None:
        """Restore :meth:`state_dict`."""
        version, *words = state
        self._random.setstate((version, tuple(words), None))
