"""How large the pool of RaaS should be: the three-zone rule of the AstraFlow paper (equation 1)."""

from __future__ import annotations

import math

from astraflow_core.types import ComponentContext, PoolTarget, PoolWindow
from astraflow_plugin_three_zones.config import ThreeZonesConfig

MOST_WAITING = 0.95
"""Cap of the waiting fraction, as in the reference system: a pool grows by a factor of 20 at most."""

_ROUNDING = 1e-9


class ThreeZones:
    """⌈G / (1 − w)⌉ RaaS instead of G if a trainer waited the fraction w of its time and that is above the upper
    threshold; min(G, ⌈G · n_c / n_p · ρ⌉) below the lower one if the window saw both production and
    consumption; else G. A pool of 0 is held: nothing can be told from it. Thresholds are strict.

    Two things differ from the paper, both since over-production is prevented here
    (``docs/decisions.md#a-pool-with-idle-slots-is-too-large``). Its
    n_p is what was *accepted*; ours is what the pool would have had accepted if no place in it had stood empty.
    And only busy places grow, ⌈G · (1 − h) / (1 − w)⌉ where the share h of the places were idle: while the
    staleness bound holds more back than the trainer waits for, further RaaS would stand empty too.

    One thing differs from the report of AstraFlow 0.1.2: a number of RaaS that is above a whole one by less than 1e-9 is
    that one. There ``math.ceil`` makes one RaaS more of what rounding adds in the last place: 6 for G = 1 and w = 0.8,
    where 1 / (1 − 0.8) is 5.000000000000001; here it is 5.
    """

    def __init__(self, config: ThreeZonesConfig, context: ComponentContext) -> None:
        self._config = config
        self.every, self.cool_down_s = config.every, config.cool_down_s

    def pool_size(self, window: PoolWindow) -> PoolTarget:
        """The rule, between ``min_replicas`` and ``max_replicas``."""
        size, keys = window.size, self._config
        if size == 0:
            return PoolTarget("hold", 0)
        most = math.inf if keys.max_replicas is None else keys.max_replicas
        wanted = max(keys.min_replicas, min(self._wanted(window), most))
        if wanted == size:
            return PoolTarget("hold", size)
        return PoolTarget("grow" if wanted > size else "shrink", int(wanted))

    def _wanted(self, window: PoolWindow) -> int:
        size, keys = window.size, self._config
        waited = min(window.waiting, MOST_WAITING)
        busy = 1 - window.held_back
        if waited > keys.grow_above:
            return max(size, _ceil(size * busy / (1 - waited)))
        if waited < keys.shrink_below and window.accepted > 0 and window.consumed > 0:
            needed = size * (window.consumed * busy / window.accepted) * keys.margin
            return min(size, _ceil(needed))
        return size


def _ceil(value: float) -> int:
    return math.ceil(value - _ROUNDING)
