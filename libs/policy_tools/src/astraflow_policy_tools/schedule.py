"""Numbers in a config that may change with the version of a policy."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import Annotated

from pydantic import AfterValidator, Field

Point = tuple[Annotated[int, Field(ge=0)], float]


def _ascending(schedule: float | tuple[Point, ...]) -> float | tuple[Point, ...]:
    if not isinstance(schedule, tuple):
        return schedule
    if any(later[0] <= earlier[0] for earlier, later in pairwise(schedule)):
        raise ValueError("versions of a schedule must ascend")
    return schedule


Schedule = Annotated[
    Annotated[float, Field(allow_inf_nan=False)]
    | Annotated[tuple[Point, ...], Field(min_length=1)],
    AfterValidator(_ascending),
]
"""A number, or points ``[[version, number], …]`` between which it changes linearly."""


def at(schedule: float | tuple[Point, ...], version: int) -> float:
    """The value at a version; before the first point and after the last one it is theirs."""
    if not isinstance(schedule, tuple):
        return schedule
    after = bisect_right(schedule, version, key=lambda point: point[0])
    if after == 0:
        return schedule[0][1]
    if after == len(schedule):
        return schedule[-1][1]
    (begin, low), (end, high) = schedule[after - 1 : after + 1]
    return low + (high - low) * (version - begin) / (end - begin)


def values(schedule: float | tuple[Point, ...]) -> tuple[float, ...]:
    """All numbers of a schedule; those between lie between them."""
    return tuple(v for _, v in schedule) if isinstance(schedule, tuple) else (schedule,)
