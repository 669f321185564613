"""Whether drafts are verified, and how many tokens of each: decided by what steps cost here, and by how many were right."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from astraflow_plugin_torch_engine.speculation.history import LONGEST, ORDERS

Int64 = npt.NDArray[np.int64]

_START, _STAY = 1.08, 1.0
"""Expected tokens a second, over those without drafts, from which on drafts are tried, and below which no longer."""
_OBSERVED = 9  # steps without drafts, of which the median counts
_ENOUGH = 3
_FORGOTTEN_AFTER = 1000  # steps without drafts, after which it is tried again what drafts cost
_PLAIN_EVERY = 64  # steps, so that what a step costs without drafts stays known
_LEAST_TRIED = 24  # drafted tokens of a kind of match, before it is relied upon
_DECAY = 0.98
_FIRST_GUESS = 0.2  # of the cost of a token in a step, what a drafted token may cost, before it has been measured
_CHEAPEST = 0.02  # the same, what it costs at least
_DEAREST = 4  # times the cost of a step, and once more for as many tokens as rows: beyond that, something else took the time


class DraftLengths:
    """Chooses how many tokens of each draft to verify, so that the tokens expected in a second are the most.

    A step of ``n`` rows costs what the last ones of about as many rows did; one with drafts costs a constant more, and as much
    for each drafted token as fits those before. A drafted token is right as often as those of its kind of match were,
    verified or only compared with what was sampled; the ``j``-th of a draft counts if the ``j - 1`` before it are right, too. So
    a token is worth it if its chance over its cost exceeds the tokens a second of the whole step.
    """

    def __init__(self) -> None:
        self._plain: dict[int, deque[float]] = {}
        self._costs = _Line()
        self._when = 0
        self._right = np.zeros(len(ORDERS) + 1)
        self._tried = np.zeros(len(ORDERS) + 1)
        self._steps = 0
        self._on = False

    def choose(self, kind: Int64, lengths: Int64) -> Int64 | None:
        """How many tokens of each row's draft to verify, of ``lengths``, int64 ``[n]`` each; ``None``: decode one token."""
        size = len(lengths)
        plain = self._cost(size)
        if plain is None or self._steps % _PLAIN_EVERY == 0:
            return None
        chances = np.where(self._tried >= _LEAST_TRIED, self._right / np.maximum(self._tried, 1), 0)
        gains = chances[:, None] ** np.arange(1, LONGEST + 1)
        sums = np.cumsum(np.pad(gains, ((0, 0), (1, 0))), axis=1)
        constant, slope = self._more(plain / size)
        rate = base = size / plain
        wanted = np.zeros(size, np.int64)
        for _ in range(
            3
        ):  # with each token that is worth it the rate rises, and with it what a token must bring
            wanted = np.minimum(lengths, (gains > rate * slope).sum(1)[kind])
            cost = plain + constant + slope * float(wanted.sum())
            rate = max(base, (size + float(sums[kind, wanted].sum())) / cost)
        self._on = bool(wanted.any()) and rate >= base * (_STAY if self._on else _START)
        return wanted if self._on else None

    def observe_step(self, rows: int, drafted: int, seconds: float) -> None:
        """Record the duration of a step with that many rows and drafted tokens, including the search for drafts."""
        self._steps += 1
        plain = self._cost(rows)
        if not drafted:
            self._plain.setdefault(_size_class(rows), deque(maxlen=_OBSERVED)).append(seconds)
        elif plain is not None:
            self._costs.observe(drafted, min(seconds, (_DEAREST + drafted / rows) * plain) - plain)
            self._when = self._steps

    def observe_drafts(self, kind: Int64, right: Int64, wrong: Int64) -> None:
        """Of each row's draft of this ``kind``, ``right`` tokens were sampled, too, and ``wrong`` (0 or 1) was the first that
        was not."""
        size = len(self._tried)
        tried = np.bincount(kind, right + wrong, size)
        fading = np.where(tried > 0, _DECAY, 1.0)
        self._right = self._right * fading + np.bincount(kind, right, size)
        self._tried = self._tried * fading + tried

    def _cost(self, rows: int) -> float | None:
        known = self._plain.get(_size_class(rows), ())
        return _median(known) if len(known) >= _ENOUGH else None

    def _more(self, per_token: float) -> tuple[float, float]:
        """What drafts cost at all, and each of their tokens."""
        if self._steps - self._when > _FORGOTTEN_AFTER:
            self._costs = _Line()
        if self._costs.weight < _ENOUGH:
            return 0.0, per_token * _FIRST_GUESS
        return self._costs.fitted(per_token * _CHEAPEST)


class _Line:
    """``y = constant + slope * x`` by least squares, recent points first."""

    def __init__(self) -> None:
        self.weight = self._x = self._y = self._xx = self._xy = 0.0

    def observe(self, x: float, y: float) -> None:
        self.weight = 0.95 * self.weight + 1
        self._x, self._y = 0.95 * self._x + x, 0.95 * self._y + y
        self._xx, self._xy = 0.95 * self._xx + x * x, 0.95 * self._xy + x * y

    def fitted(self, least: float) -> tuple[float, float]:
        """Constant and slope, the slope at least ``least``; through the origin, if all ``x`` are the same or that fits worse
        than a constant below zero."""
        x, y = self._x / self.weight, self._y / self.weight
        variance = self._xx / self.weight - x * x
        slope = (self._xy / self.weight - x * y) / variance if variance > 0.01 * x * x else y / x
        slope = max(slope, least)
        if y < slope * x:
            return 0.0, max(y / x, least)
        return y - slope * x, slope


def _median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def _size_class(rows: int) -> int:
    """Two for each power of two."""
    top = rows.bit_length()
    return 2 * top + (rows >> max(0, top - 2) & 1)
