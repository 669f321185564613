"""``Trajectory.metrics`` in a message: one column for each name, with a value or ``None`` for each trajectory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from astraflow_core.types import Trajectory
from astraflow_wire.limits import MAX_EPISODE_METRICS, MAX_LABEL, MAX_NUMBER

Columns = dict[str, list[float | None]]


def unsendable(name: str, value: float) -> str:
    """Why a message may not contain this metric; empty if it may."""
    if not 0 < len(name) <= MAX_LABEL or not name.isprintable():
        return f"a name has 1 to {MAX_LABEL} printable characters"
    if not -MAX_NUMBER <= value <= MAX_NUMBER:
        return f"a value is finite and within ±{MAX_NUMBER:g}"
    return ""


def columns(trajectories: Sequence[Trajectory]) -> Columns:
    """The metrics of a group, without those that are :func:`unsendable`; of more than
    :data:`MAX_EPISODE_METRICS` names the first ones."""
    found: Columns = {}
    for index, trajectory in enumerate(trajectories):
        for name, given in trajectory.metrics.items():
            # As Python's floats: those of float32 are compared as float32, to which a large bound is infinite.
            value = float(given)
            if unsendable(name, value):
                continue
            if name not in found:
                if len(found) == MAX_EPISODE_METRICS:
                    continue
                found[name] = [None] * len(trajectories)
            found[name][index] = value
    return found


def joined(parts: Iterable[tuple[int, Columns]]) -> Columns:
    """The columns of several groups as those of one; with each goes the number of its trajectories."""
    found: Columns = {}
    before = 0
    for count, part in parts:
        for name in dict.fromkeys((*found, *part)):
            if name in found or len(found) < MAX_EPISODE_METRICS:
                own = part.get(name, [None] * count)
                found.setdefault(name, [None] * before).extend(own)
        before += count
    return found
