"""“Did you mean …?” for every name that a person can mistype."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def near(name: str, known: Iterable[str], most: int = 3) -> list[str]:
    """Up to ``most`` known names that are like ``name``, the most like it first."""
    by_folded = {entry.lower().replace("-", "_"): entry for entry in known}
    matches = get_close_matches(name.lower().replace("-", "_"), by_folded, n=most, cutoff=0.6)
    return [by_folded[match] for match in matches]


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like ``name``, if one is like it at all."""
    return next(iter(near(name, known, 1)), None)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"``, or nothing."""
    match = nearest(name, known)
    return f"; did you mean '{match}'?" if match is not None else ""
