"""States of data policies that were saved, perhaps by another version of their plugin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def require_keys(state: Mapping[str, Any], *expected: str) -> None:
    """:class:`ValueError` unless ``state`` has exactly these keys: a policy refuses what it would misread."""
    if state.keys() != set(expected):
        raise ValueError(
            f"a state with {', '.join(sorted(state)) or 'nothing'} was saved by another version of this "
            f"policy; this one has {', '.join(sorted(expected))}"
        )
