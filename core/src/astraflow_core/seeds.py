"""Seeds of components, derived from the run's so that no two of them draw the same numbers."""

from __future__ import annotations

import xxhash


def derive_seed(seed: int, *names: str | int) -> int:
    """A 63-bit seed for whatever ``names`` identifies (role, policy, replica …); it never changes."""
    text = "\x1f".join([str(seed), *map(str, names)])
    return xxhash.xxh3_64_intdigest(text.encode()) >> 1
