"""Which runs have a RaaS on which host: a pure function. A host has *slots*, as many RaaS as its memory holds side by side, and at
most one RaaS of a run; if more runs want to be there, they take turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Want:
    """A run, and how many RaaS it can use (``most``). ``usage``: tokens per weight."""

    run: str
    weight: float
    usage: float
    most: int
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Seat:
    """A RaaS on a host, for ``held_s`` seconds. ``idle``: it has had nothing to do for some time. ``leaving``: it will end."""

    host: str
    run: str
    held_s: float
    idle: bool = False
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class Moves:
    """RaaS to start, and those to end so that others can: pairs of host and run."""

    start: tuple[tuple[str, str], ...] = ()
    end: tuple[tuple[str, str], ...] = ()


def place(
    slots: Mapping[str, int], seats: Sequence[Seat], wants: Sequence[Want], turn_s: float
) -> Moves:
    """What to change.

    Free slots go to the run that has fewest RaaS for its weight. On a full host a RaaS makes room for that of another run of a
    higher priority at once; of the same priority, once it was there for ``turn_s`` or is idle, and only if the other one has
    none at all and less usage, or would still have no more RaaS for its weight. A host ends one RaaS at a time.
    """
    run_of = {want.run: want for want in wants}
    there = {(seat.host, seat.run): seat for seat in seats}
    count = dict.fromkeys(run_of, 0)
    for seat in seats:
        if not seat.leaving and seat.run in count:
            count[seat.run] += 1
    free = {host: n - sum(seat.host == host for seat in seats) for host, n in slots.items()}
    start = _fill(free, there, wants, count)
    taken = {*there, *start}
    ending = {seat.host for seat in seats if seat.leaving}
    coming = len(ending)
    end: list[tuple[str, str]] = []
    for want in sorted(wants, key=lambda w: _turn(w, count)):
        if count[want.run] >= want.most:
            continue
        if coming:  # a slot that becomes free is for the first who waits
            coming -= 1
            continue
        found = [
            seat
            for seat in seats
            if not seat.leaving
            and seat.host in slots
            and seat.host not in ending
            and (seat.host, want.run) not in taken
            and free[seat.host] <= 0
            and seat.run in run_of
            and _gives_way(seat, run_of[seat.run], want, count, turn_s)
        ]
        if found:
            victim = min(
                found, key=lambda s: (run_of[s.run].priority, not s.idle, -run_of[s.run].usage)
            )
            end.append((victim.host, victim.run))
            ending.add(victim.host)
            count[victim.run] -= 1
            count[want.run] += 1
    return Moves(tuple(start), tuple(end))  # fmt: skip


def _turn(want: Want, count: Mapping[str, int]) -> tuple[float, float, float, str]:
    return (-want.priority, count[want.run] / want.weight, want.usage, want.run)


def _fill(
    free: dict[str, int],
    there: Mapping[tuple[str, str], Seat],
    wants: Sequence[Want],
    count: dict[str, int],
) -> list[tuple[str, str]]:
    start: list[tuple[str, str]] = []
    waiting = list(wants)
    while waiting:
        want = min(waiting, key=lambda w: _turn(w, count))
        hosts = [
            host
            for host, left in free.items()
            if left > 0 and (host, want.run) not in there and (host, want.run) not in start
        ]
        if count[want.run] >= want.most or not hosts:
            waiting.remove(want)
            continue
        host = max(hosts, key=lambda h: (free[h], h))
        start.append((host, want.run))
        free[host] -= 1
        count[want.run] += 1
    return start


def _gives_way(
    seat: Seat, holder: Want, want: Want, count: Mapping[str, int], turn_s: float
) -> bool:
    if holder.priority != want.priority:
        return holder.priority < want.priority
    if not seat.idle and seat.held_s < turn_s:
        return False
    if count[want.run] == 0:
        return seat.idle or holder.usage > want.usage
    return (count[want.run] + 1) / want.weight <= (count[holder.run] - 1) / holder.weight
