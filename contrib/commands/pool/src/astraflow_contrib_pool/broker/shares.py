"""How the places of a host are divided among the runs that have a RaaS there: a pure function of what each run used.

Each run has a *usage*: the tokens that it got, divided by its weight (the virtual time of start-time fair queueing, Goyal et
al. 1996). Places are dealt task by task to the run whose usage would be the least with the tokens that the task is going to
generate: episodes are charged when they begin, since they may end much later. So tokens follow the weights in the long run, whatever
models and lengths the runs have.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Claim:
    """One run on one host. ``usage``: tokens per weight, without those of ``running``, its episodes here. ``tokens``: what an episode
    generates on average, 0 if that is not known. ``unit``: episodes of a task, which it runs together. ``most``: episodes
    that its RaaS runs at once. ``busy``: it uses what it is given. ``blocked``: its quota is used up. Of a higher ``priority``
    is served first."""

    run: str
    weight: float
    usage: float
    unit: int
    most: int
    tokens: float = 0.0
    running: int = 0
    priority: int = 0
    busy: bool = True
    blocked: bool = False


def share_places(places: int, claims: Sequence[Claim]) -> dict[str, int]:
    """Run → episodes that it may run at once.

    All ``places`` are given out as long as busy runs can use them, in whole units; only for a run that has nothing, and whose turn
    it is, they are kept until its task fits. Episodes that run beyond what their run is given keep their places until they end. A
    run that is not busy is offered its share without a cost to the others, so that it can begin at once.
    """
    busy = [claim for claim in claims if claim.busy and not claim.blocked]
    given, waits = _shared(places, busy)
    running = sum(claim.running for claim in claims)
    if beyond := sum(max(0, each.running - given.get(each.run, 0)) for each in claims):
        given, waits = _shared(max(0, places - beyond), busy)
    if waits and not running and not any(given.values()):
        given[min(busy, key=_turn).run] = places  # a RaaS with any place runs one task
    elif not waits:
        _fill(places - running, busy, given)
    used = sum(given.values())
    highest = max((claim.priority for claim in busy), default=None)
    for claim in claims:
        if not claim.busy and not claim.blocked:
            rivals = [each for each in busy if each.priority == claim.priority]
            if highest is None or claim.priority >= highest or used < places:
                given[claim.run] = _offer(places, claim, rivals)
    return {claim.run: given.get(claim.run, 0) for claim in claims}


def _turn(claim: Claim) -> tuple[int, float, str]:
    return (-claim.priority, claim.usage, claim.run)


def _shared(places: int, claims: Sequence[Claim]) -> tuple[dict[str, int], bool]:
    """What busy runs are given, and whether one that has nothing waits for its task to fit."""
    usual = max((claim.tokens for claim in claims if claim.tokens), default=1.0)
    given = dict.fromkeys((claim.run for claim in claims), 0)
    left = places
    for priority in sorted({claim.priority for claim in claims}, reverse=True):
        same = [claim for claim in claims if claim.priority == priority]
        left, waits = _deal(left, same, given, usual)
        if waits:
            return given, True
    return given, False


def _deal(
    left: int, claims: Sequence[Claim], given: dict[str, int], usual: float
) -> tuple[int, bool]:
    """Give units to the run whose usage would be the least with one more, until nothing fits; what is left, and whether one that
    has nothing waits for it."""

    def entry(number: int) -> tuple[float, str, int]:
        claim = claims[number]
        episodes = given[claim.run] + min(claim.unit, claim.most)
        charge = episodes * (claim.tokens or usual) / claim.weight
        return (claim.usage + charge, claim.run, number)

    waiting = [entry(number) for number in range(len(claims))]
    heapq.heapify(waiting)
    while waiting:
        *_, number = heapq.heappop(waiting)
        claim = claims[number]
        unit = min(claim.unit, claim.most)
        if given[claim.run] + unit > claim.most:
            continue
        if unit > left:
            if not (given[claim.run] or claim.running):
                return left, True
            continue
        given[claim.run] += unit
        left -= unit
        heapq.heappush(waiting, entry(number))
    return left, False


def _fill(room: int, claims: Sequence[Claim], given: dict[str, int]) -> None:
    """Let runs begin another task in places that are empty (``room``): the last episodes of a task hold less than what its run is
    given, and more than what would leave room for the next one."""
    begins = {
        claim.run: max(0, given[claim.run] - claim.running) // claim.unit * claim.unit
        for claim in claims
    }
    room -= sum(begins.values())
    for claim in sorted(claims, key=lambda claim: (given[claim.run] == 0, *_turn(claim))):
        next_ = claim.running + claim.unit
        if not begins[claim.run] and claim.unit <= room and next_ <= claim.most:
            given[claim.run] = next_
            room -= claim.unit


def _offer(places: int, claim: Claim, rivals: Sequence[Claim]) -> int:
    """The share that an idle run would get alongside the others, at least a unit."""
    weight = claim.weight + sum(rival.weight for rival in rivals)
    units = int(places * claim.weight / weight) // claim.unit
    return min(claim.most, max(1, units) * claim.unit)


def caught_up(usages: Iterable[float], own: float) -> float:
    """The usage of a run that joins, or rejoins, runs with these ``usages``: it gets no credit for the time in which
    it requested nothing."""
    return max(own, min(usages, default=own))
