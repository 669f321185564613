"""“Did you mean …?” for every name that a user can mistype."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def near(name: str, known: Iterable[str], most: int = 3) -> list[str]:
    """Up to ``most`` known names that are like ``name``, the most like it first; failing those, names that contain all
    of its words, as ``max_episodes`` does those of ``episodes``."""
    by_folded = {entry.lower().replace("-", "_"): entry for entry in known}
    folded = name.lower().replace("-", "_")
    matches = get_close_matches(folded, by_folded, n=most, cutoff=0.6)
    if not matches and folded:
        words = set(folded.split("_"))
        matches = [entry for entry in by_folded if words <= set(entry.split("_"))][:most]
    return [by_folded[match] for match in matches]


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like ``name``, if one is like it at all."""
    return next(iter(near(name, known, 1)), None)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"``, or nothing."""
    match = nearest(name, known)
    return f"; did you mean '{match}'?" if match is not None else ""
