"""“Did you mean …?” for every name that a person can mistype."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like ``name``, if one is like it at all."""
    by_folded = {entry.lower().replace("-", "_"): entry for entry in known}
    matches = get_close_matches(name.lower().replace("-", "_"), by_folded, n=1, cutoff=0.6)
    return by_folded[matches[0]] if matches else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"``, or nothing."""
    match = nearest(name, known)
    return f"; did you mean '{match}'?" if match is not None else ""
