"""The admission limit: how many episodes a RaaS runs at once, as many as its engines run by their
own gauges.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

SPARE = 0.25
"""Requests that may queue in an engine for each running one, so that it is never idle."""

CACHE_FULL = 0.95
"""Share of the KV cache from which an engine soon has to preempt what it runs."""

_GROWTH = 1.25


class AdmissionLimit:
    """A limit that follows the engines: it drops to what they run plus :data:`SPARE` when requests
    queue up, stops growing when the cache is full, and grows slowly up to ``most`` while nothing
    waits. A queue counts only if two consecutive observations see it: requests also wait during a
    swap of weights. ``granted``: what the host allows, if other runs use it too.
    """

    def __init__(self, most: int, least: int) -> None:
        self._most, self._least = most, min(most, least)
        self._limit, self.granted = most, most
        self.reason = ""
        self._before = math.inf

    @property
    def limit(self) -> int:
        """Episodes at once."""
        return min(self._limit, self.granted)

    def observe(self, episodes: int, gauges: Mapping[str, Mapping[str, float]]) -> None:
        """Update from the gauges of each policy's engines, read while ``episodes`` ran."""
        bounds = {policy: self._bound(episodes, said) for policy, said in gauges.items()}
        policy = min(bounds, key=lambda name: bounds[name][0], default=None)
        if policy is None:
            return
        now, reason = bounds[policy]
        bound, self._before = max(now, self._before), now
        if bound < self._limit:
            self._limit = max(self._least, math.ceil(bound))
            self.reason = f"policy {policy!r}: {reason}"
        elif self._limit < self._most and not any(map(_is_pressed, gauges.values())):
            self._limit = min(self._most, math.ceil(self._limit * _GROWTH))
            self.reason = self.reason if self._limit < self._most else ""

    def _bound(self, episodes: int, said: Mapping[str, float]) -> tuple[float, str]:
        running, waiting = said.get("running", 0.0), said.get("waiting", 0.0)
        used = said.get("kv_cache_usage", 0.0)
        if running <= 0 or episodes <= 0:
            return math.inf, ""
        if waiting > SPARE * running:
            share = (1 + SPARE) * running / (running + waiting)
            return episodes * share, f"{waiting:.0f} requests wait while {running:.0f} run"
        if used >= CACHE_FULL:
            return float(episodes), f"its KV cache is {used:.0%} full"
        return math.inf, ""


def _is_pressed(said: Mapping[str, float]) -> bool:
    return said.get("waiting", 0.0) > 0 or said.get("kv_cache_usage", 0.0) >= CACHE_FULL
