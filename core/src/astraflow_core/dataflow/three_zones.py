"""How large the pool of RaaS should be: the three-zone rule of the AstraFlow paper (equation 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

MOST_WAITING = 0.95
"""Cap of the waiting fraction, as in the reference system: a pool grows by a factor of 20 at most."""

_ROUNDING = 1e-9

Branch = Literal["grow", "shrink", "hold"]


@dataclass(frozen=True, slots=True)
class Zones:
    """Strict thresholds of the waiting fraction, and the margin ρ that is kept when the pool shrinks."""

    grow_above: float = 0.10
    shrink_below: float = 0.05
    margin: float = 1.10


@dataclass(frozen=True, slots=True)
class Target:
    """The size that the pool should have, and which zone says so."""

    branch: Branch
    size: int


def target_of(
    size: int, waiting: float, producible: float, consumed: float, zones: Zones
) -> Target:
    """What a pool of ``size`` should become: ⌈G / (1 − w)⌉ if a trainer waited the fraction ``waiting`` of its
    time and that is above the upper threshold, min(G, ⌈G · n_c / n_p · ρ⌉) below the lower one if the window
    saw both production and consumption, else G. A pool of 0 is held: nothing can be told from it.

    ``consumed`` (n_c) and ``producible`` (n_p) are in one unit. The paper's n_p is what was *accepted*, which
    is above n_c in a system that over-produces. Here over-production is prevented, so n_p is what the pool
    would have had accepted if no place in it had stood empty for want of a task (``docs/decisions.md``).
    """
    waited = min(waiting, MOST_WAITING)
    if size == 0:
        return Target("hold", 0)
    if waited > zones.grow_above:
        return Target("grow", _ceil(size / (1 - waited)))
    if waited < zones.shrink_below and producible > 0 and consumed > 0:
        needed = min(size, _ceil(size * (consumed / producible) * zones.margin))
        return Target("shrink" if needed < size else "hold", needed)
    return Target("hold", size)


def _ceil(value: float) -> int:
    return math.ceil(value - _ROUNDING)
