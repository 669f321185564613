"""Values of a row by dotted keys, and texts with places for them."""

from __future__ import annotations

import re
from typing import Any

_PLACE = re.compile(r"\{\{([\w.-]+)\}\}|\{([\w.-]+)\}")
_MISSING = object()


def value_at(row: dict[str, Any], key: str) -> Any:
    """The value of a key of the row, or of a nested key with dots; raises :class:`ValueError` if there is none."""
    if key in row:
        return row[key]
    found: Any = row
    for step in key.split("."):
        if isinstance(found, dict):
            found = found.get(step, _MISSING)
        elif isinstance(found, list) and step.isdecimal() and int(step) < len(found):
            found = found[int(step)]
        else:
            found = _MISSING
        if found is _MISSING:
            raise ValueError(f"has no key {key!r}; its keys: {', '.join(sorted(row)) or 'none'}")
    return found


def checked_template(template: str) -> str:
    """The template; :class:`ValueError` if no value has a place in it."""
    if template and not keys_of(template):
        raise ValueError("the template has no {key}, so all prompts would be the same")
    return template


def keys_of(template: str) -> list[str]:
    """The keys whose values have a place."""
    return [match[2] for match in _PLACE.finditer(template) if match[2]]


def filled(template: str, row: dict[str, Any]) -> str:
    """The template with the values of a row."""

    def value(match: re.Match[str]) -> str:
        if match[1]:
            return "{" + match[1] + "}"
        found = value_at(row, match[2])
        if isinstance(found, bool) or not isinstance(found, str | int | float):
            raise ValueError(
                f"{match[2]!r} is of type {type(found).__name__}; a template takes texts and numbers"
            )
        return str(found)

    return _PLACE.sub(value, template)
