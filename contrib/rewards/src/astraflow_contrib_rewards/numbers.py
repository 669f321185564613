"""Numbers in text, as exact fractions."""

from __future__ import annotations

import re
from collections import deque
from fractions import Fraction

LONGEST = 300
"""A longer run of characters is not a number: a policy may write any, and arithmetic must stay cheap."""
# Every part is tried in constant time or consumes what it matches, so the search is linear in the text.
_PLAIN = r"(?:\d{1,3}(?:,\d{3}(?!\d))+|\d+)(?:\.\d+)?|(?<!\d)\.\d+"
_EXPONENT = r"(?:[eE][-+]?\d{1,3}(?![\d.]))?"
# A minus right after a digit, a letter or a bracket is an operator: the last number of '7-4' is 4.
_NUMBER = re.compile(
    rf"((?<![\w)\]}}.])[-+−])?({_PLAIN})({_EXPONENT})(?:\s?/\s?({_PLAIN}))?", re.ASCII
)


def last_number(text: str) -> Fraction | None:
    """The last number of ``text``: integer, decimal, with exponent, or fraction ``a/b``; commas may
    separate thousands. ``None`` if there is none, if it divides by zero or if it is absurdly long."""
    last = deque(_NUMBER.finditer(text), maxlen=1)
    match = last.pop() if last else None
    if match is None or len(match[0]) > LONGEST:
        return None
    sign, numerator, exponent, denominator = match.groups()
    value = Fraction(numerator.replace(",", "") + exponent)
    if denominator is not None:
        divisor = Fraction(denominator.replace(",", ""))
        if not divisor:
            return None
        value /= divisor
    return -value if sign in ("-", "−") else value
