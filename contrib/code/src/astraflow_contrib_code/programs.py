"""The program in a completion."""

from __future__ import annotations

import re

REASONING_END = "</think>"
_FENCE = re.compile(r"^[ \t]{0,3}(`{3,}|~{3,})([^`\n]*)$", re.MULTILINE)


def last_block(text: str) -> str | None:
    """The content of the last closed fenced block of Markdown after the reasoning; ``None`` if there is none. A
    block ends with a line of as many marks of its kind as it begins with, or more."""
    visible = text.rpartition(REASONING_END)[2]
    opened: re.Match[str] | None = None
    block: str | None = None
    for fence in _FENCE.finditer(visible):
        marks, rest = fence[1], fence[2].strip()
        if opened is None:
            opened = fence
        elif marks[0] == opened[1][0] and len(marks) >= len(opened[1]) and not rest:
            block, opened = visible[opened.end() + 1 : fence.start()], None
    return block
