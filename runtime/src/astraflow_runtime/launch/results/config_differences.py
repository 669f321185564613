"""In what the configurations of runs differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Flat = dict[str, Any]
_IGNORED = ("run.name", "run.directory")
"""Keys that differ between any two runs."""


def flatten(table: Mapping[str, Any], path: str = "") -> Flat:
    """Nested tables as dotted keys."""
    found: Flat = {}
    for key, value in table.items():
        where = f"{path}.{key}" if path else key
        if isinstance(value, Mapping):
            found |= flatten(value, where)
        elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
            found |= flatten({str(index): item for index, item in enumerate(value)}, where)
        else:
            found[where] = value
    return found


def differing(configs: Mapping[str, Flat]) -> list[str]:
    """The keys that only some of the ``configs`` have, or whose values differ, in order of first appearance."""
    keys = dict.fromkeys(key for flat in configs.values() for key in flat)
    return [
        key
        for key in keys
        if key not in _IGNORED and len({repr(flat.get(key)) for flat in configs.values()}) > 1
    ]
