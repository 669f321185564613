"""The names of errors as words to count by."""

from __future__ import annotations

import re

_LONGEST = 32
_INNER_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def kind_of(name: str) -> str:
    """``TaskError`` becomes ``task_error``."""
    words = _INNER_CAPITAL.sub("_", name).lower()
    return re.sub(r"[^a-z0-9_]+", "_", words)[:_LONGEST] or "error"
