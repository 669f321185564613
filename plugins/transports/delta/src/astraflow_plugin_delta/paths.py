"""The cheapest way, in bytes, from the versions that a receiver has to the one it wants."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from astraflow_plugin_delta.link import LinkEntry

State = tuple[int, str]
"""A version by its number and digest: equal digests under one number are equal bytes."""


@dataclass(frozen=True, slots=True)
class Path:
    """Links to apply in turn to ``start``; ``cost`` is how many bytes have to be fetched."""

    start: State
    links: tuple[LinkEntry, ...]
    cost: int


def cheapest(
    entries: Iterable[LinkEntry], held: Iterable[State], cached: Collection[bytes], wanted: State
) -> Path | None:
    """The cheapest path from any of ``held`` to ``wanted``, None if there is none. Links whose checksum is
    in ``cached`` cost nothing; of equal cost, the path from the earlier of ``held``, then the one with fewer links."""
    best: dict[State, tuple[int, int, Path]] = {}
    for order, state in enumerate(held):
        best.setdefault(state, (0, order, Path(state, (), 0)))
    forward = [entry for entry in entries if entry.base < entry.version]
    for entry in sorted(forward, key=lambda each: each.version):
        known = best.get((entry.base, entry.base_digest))
        if known is None:
            continue
        _, order, path = known
        cost = path.cost + (0 if entry.checksum in cached else entry.size)
        offer = (cost, order, Path(path.start, (*path.links, entry), cost))
        reached = (entry.version, entry.digest)
        if reached not in best or _rank(offer) < _rank(best[reached]):
            best[reached] = offer
    found = best.get(wanted)
    return found[2] if found else None


def _rank(offer: tuple[int, int, Path]) -> tuple[int, int, int]:
    cost, order, path = offer
    return cost, order, len(path.links)
