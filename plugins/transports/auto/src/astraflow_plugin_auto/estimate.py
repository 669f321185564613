"""How long a version takes over a link, whole or by deltas. Pure."""

from __future__ import annotations

from astraflow_core.types import Link

FAST_MB_S = 500.0
"""Bandwidth from which whole versions of large models arrive sooner than deltas are made and applied."""
SHARE = 0.01
"""Bytes of a delta over those of the version: some 1.2 % of bf16 weights change, at 1.3 to 1.6 bytes each."""
_MADE_MB_S = FAST_MB_S / (1 - SHARE)
"""Megabytes of a model for which a delta is made and applied in a second, if :data:`FAST_MB_S` is where both are
equally quick."""


def whole_s(megabytes: float, link: Link) -> float:
    """Seconds of a whole version."""
    return link.round_trip_s + megabytes / link.mb_s


def delta_s(megabytes: float, link: Link) -> float:
    """Seconds by a delta, which takes one round trip more: which deltas there are is asked first."""
    return 2 * link.round_trip_s + SHARE * megabytes / link.mb_s + megabytes / _MADE_MB_S


def whole_is_quicker(megabytes: float | None, link: Link) -> bool:
    """Whether whole versions are quicker, of a large model if the size is not known."""
    if megabytes is None:
        return link.mb_s >= FAST_MB_S
    # whole_s - delta_s in one product: their difference would be decided by rounding where they are almost equal.
    saved_s = (1 - SHARE) * megabytes * (1 / link.mb_s - 1 / FAST_MB_S)
    return saved_s <= link.round_trip_s
