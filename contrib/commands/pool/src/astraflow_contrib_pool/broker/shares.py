"""How the places of a host are divided among the runs that have a RaaS there: a pure function of what each run used.

Each run has a *usage*: the tokens that it got, divided by its weight (the virtual time of start-time fair queueing, Goyal et
al. 1996). Places follow the weights, and a run whose usage is ahead of the others gets places only if they leave some, so that
in the long run tokens follow the weights too, whatever models and lengths the runs have.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Claim:
    """One run on one host. ``usage``: tokens per weight. ``unit``: episodes of a task, which it runs together. ``most``: episodes
    that its RaaS runs at once. ``busy``: it uses what it is given. ``blocked``: its quota is used up. Of a higher ``priority``
    is served first."""

    run: str
    weight: float
    usage: float
    unit: int
    most: int
    priority: int = 0
    busy: bool = True
    blocked: bool = False


def share_places(places: int, claims: Sequence[Claim], tolerance: float) -> dict[str, int]:
    """Run → episodes that it may run at once.

    All ``places`` are given out as long as busy runs can use them, in whole units. A run gets none while its usage is more than
    ``tolerance`` above the least of its priority on this host, unless the others leave some. A run that is not busy is offered
    its share without a cost to the others, so that it can begin at once.
    """
    given = dict.fromkeys((claim.run for claim in claims), 0)
    allowed = [claim for claim in claims if not claim.blocked]
    busy = [claim for claim in allowed if claim.busy]
    left = places
    for priority in sorted({claim.priority for claim in busy}, reverse=True):
        same = [claim for claim in busy if claim.priority == priority]
        least = min(claim.usage for claim in same)
        first = [claim for claim in same if claim.usage <= least + tolerance]
        behind = [claim for claim in same if claim.usage > least + tolerance]
        left = _deal(left, first, given)
        left = _deal(left, behind, given)
    if busy and left == places and places > 0:
        # A whole unit does not fit: a RaaS with any place runs one task.
        given[_next(busy).run] = places
    above = max((claim.priority for claim in busy), default=None)
    for claim in allowed:
        if not claim.busy and (left or above is None or claim.priority >= above):
            rivals = [each for each in busy if each.priority == claim.priority]
            given[claim.run] = _deal_one(places, claim, rivals)
    return given


def _deal(left: int, claims: Sequence[Claim], given: dict[str, int]) -> int:
    """Give units to the one that has least for its weight, until nothing fits; what is left."""

    def entry(number: int) -> tuple[float, float, str, int]:
        claim = claims[number]
        size = given[claim.run] + min(claim.unit, claim.most)
        return (size / claim.weight, claim.usage, claim.run, number)

    waiting = [entry(number) for number in range(len(claims))]
    heapq.heapify(waiting)
    while waiting:
        *_, number = heapq.heappop(waiting)
        claim = claims[number]
        size = min(claim.unit, claim.most - given[claim.run], left)
        if size >= min(claim.unit, claim.most):
            given[claim.run] += size
            left -= size
            heapq.heappush(waiting, entry(number))
    return left


def _next(claims: Iterable[Claim]) -> Claim:
    """Whose turn it is."""
    return min(claims, key=lambda claim: (-claim.priority, claim.usage, claim.run))


def _deal_one(places: int, claim: Claim, rivals: Sequence[Claim]) -> int:
    """What an idle run would get beside its rivals, at least a unit."""
    weight = claim.weight + sum(rival.weight for rival in rivals)
    units = int(places * claim.weight / weight) // claim.unit
    return min(claim.most, max(1, units) * claim.unit)


def caught_up(usages: Iterable[float], own: float) -> float:
    """The usage of a run that comes, or comes back, beside runs with these ``usages``: it gets no credit for the time for which
    it asked for nothing."""
    return max(own, min(usages, default=own))
