"""Regular expressions that need time linear in the text, whatever the expression."""

from __future__ import annotations

from functools import lru_cache
from typing import Any


@lru_cache(64)
def matcher(pattern: str) -> Any:
    """The compiled expression; raises :class:`ValueError` with the reason if it is invalid."""
    import re2

    options = re2.Options()
    options.dot_nl = True
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else error
        text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise ValueError(
            f"{pattern!r:.80} is not a valid RE2 regular expression, which has neither look-around nor back-references: {text}"
        ) from error


def compiled(pattern: str) -> str:
    """The pattern, of which it is known that it compiles."""
    matcher(pattern)
    return pattern
