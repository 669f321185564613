"""The configuration of a run as trackers show it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def dotted(value: Any, key: str = "") -> dict[str, Any]:
    """Nested tables as dotted keys; the elements of a list of tables are numbered."""
    if isinstance(value, list | tuple) and any(isinstance(each, Mapping) for each in value):
        value = {str(index): each for index, each in enumerate(value)}
    if not isinstance(value, Mapping):
        return {key: value}
    found: dict[str, Any] = {}
    for name, each in value.items():
        found |= dotted(each, f"{key}.{name}" if key else str(name))
    return found
