"""Makes untrusted text safe for a terminal."""

from __future__ import annotations

import re
from typing import Any

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters except tab and newline, which begin terminal escape sequences, and characters
that reorder or break lines.
"""


MAX_SHOWN = 500
"""The most characters of a line on a terminal; logs and status have all of it."""


def cut_lines(text: str) -> str:
    """``text`` with each of its lines cut to :data:`MAX_SHOWN` characters."""
    return "\n".join(
        line if len(line) <= MAX_SHOWN else f"{line[: MAX_SHOWN - 1]}…" for line in text.split("\n")
    )


def shown(text: str) -> str:
    """``text`` made safe for a terminal, with long lines cut."""
    return cut_lines(printable(text))


def printable(text: str) -> str:
    """``text`` with ``\\u001b`` and the like in place of control characters."""
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def all_printable(value: Any) -> Any:
    """Decoded JSON with all its strings, keys too, made :func:`printable`."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(key): all_printable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [all_printable(item) for item in value]
    return value
