"""Confidence intervals of figures that are means over prompts.

The prompts of a set are the sample: episodes of one prompt say more about that prompt, not about others. Figures from 0 to 1
have Wilson's interval (Wilson 1927) with the effective number of samples that the variance between prompts implies, which
is how Korn and Graubard (1998) treat proportions of clustered samples. With one episode a prompt it is Wilson's own. Unlike
the normal interval it is right near 0 and 1, and not empty at them. Mean rewards have Student's interval over prompts.
Differences of two models are taken prompt by prompt.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and the interval that holds it with :data:`CONFIDENCE`; ``None`` for both ends where the sample says
    nothing of them."""

    value: float
    low: float | None
    high: float | None

    def as_json(self) -> dict[str, float | None]:
        """As an object."""
        return {"value": self.value, "low": self.low, "high": self.high}


def proportion(values: Sequence[float], episodes: int) -> Estimate:
    """The mean of ``values``, one from 0 to 1 for each prompt, of ``episodes`` in all: Wilson's interval with an effective
    number of samples."""
    count = len(values)
    mean = math.fsum(values) / count
    spread = math.fsum((value - mean) ** 2 for value in values) / count
    # Where all prompts are alike the sample says nothing of their variance: each counts once.
    effective = count * mean * (1 - mean) / spread if spread > 1e-12 else float(count)
    effective = min(max(effective, float(count)), float(episodes))
    if 1 < count < episodes:
        # The variance is known from fewer prompts than there are episodes.
        effective *= (quantile(episodes - 1) / quantile(count - 1)) ** 2
    z = quantile(None)
    shrunk = 1 + z * z / effective
    middle = (mean + z * z / (2 * effective)) / shrunk
    half = z / shrunk * math.sqrt(mean * (1 - mean) / effective + z * z / (4 * effective**2))
    return Estimate(mean, max(0.0, min(middle - half, mean)), min(1.0, max(middle + half, mean)))


def ratio(sums: Sequence[float], counts: Sequence[int]) -> Estimate:
    """The mean over all episodes, of which each prompt has a sum and a count: the ratio estimator with Student's
    interval."""
    total, prompts = sum(counts), len(counts)
    mean = math.fsum(sums) / total
    if prompts < 2:
        return Estimate(mean, None, None)
    squares = math.fsum((s - mean * c) ** 2 for s, c in zip(sums, counts, strict=True))
    half = quantile(prompts - 1) * math.sqrt(prompts / (prompts - 1) * squares) / total
    return Estimate(mean, mean - half, mean + half)


def difference(pairs: Sequence[tuple[float, float]], samples: int) -> Estimate:
    """The mean of the first less that of the second, each a share of ``samples`` episodes, over the prompts that both have:
    the interval of Agresti and Min (2005) for pairs, which adds one pair of episodes that are alike and half of one for
    either side, with Student's quantile. So it is not empty where no pair differs."""
    count, added = len(pairs), 1 / samples
    differences = [first - second for first, second in pairs]
    mean = math.fsum(differences) / count
    if count < 2:
        return Estimate(mean, None, None)
    size = count + 2 * added
    middle = math.fsum(differences) / size
    squares = math.fsum(each * each for each in differences) + added
    half = quantile(count - 1) * math.sqrt((squares / size - middle * middle) / size)
    return Estimate(mean, min(mean, max(-1.0, middle - half)), max(mean, min(1.0, middle + half)))


def quantile(freedom: int | None) -> float:
    """The quantile of Student's distribution that leaves half of ``1 - CONFIDENCE`` above it, of the normal one for
    ``None``: Cornish and Fisher's expansion to 1/freedom⁴ (Abramowitz and Stegun, 26.7.5), 0.001 off at 5 degrees and 1.4
    below 12.7 at one."""
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    if freedom is None:
        return z
    return z + math.fsum(
        math.fsum(factor * z**power for power, factor in terms) / (divisor * freedom**order)
        for order, (divisor, terms) in enumerate(_EXPANSION, start=1)
    )


_EXPANSION = (
    (4, ((3, 1), (1, 1))),
    (96, ((5, 5), (3, 16), (1, 3))),
    (384, ((7, 3), (5, 19), (3, 17), (1, -15))),
    (92160, ((9, 79), (7, 776), (5, 1482), (3, -1920), (1, -945))),
)
"""For each power of 1/freedom: its divisor, and the factors of powers of the normal quantile."""
