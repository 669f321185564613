"""Pieces of Markdown."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable

COMMAND = "make docs"
BEGIN = f"<!-- from here to the end mark: written by `{COMMAND}` -->"
END = "<!-- end -->"
GENERATED = f"<!-- written by `{COMMAND}`; do not edit -->"
FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
"""A block of code: its indent, its language and its text."""


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A table of GitHub's Markdown; cells may hold anything but line breaks."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(
        "| " + " | ".join(c.replace("|", r"\|") for c in line) + " |" for line in lines
    )


def prose(docstring: str | None) -> str:
    """A docstring (reStructuredText as we write it) as Markdown."""
    text = inspect.cleandoc(docstring or "")
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text)
    return re.sub(r"``([^`]+)``", r"`\1`", text)


def code(text: object) -> str:
    """As code; nothing stays nothing."""
    return f"`{text}`" if str(text) else ""


def codes(items: Iterable[object]) -> str:
    """Several, sorted."""
    return ", ".join(code(item) for item in sorted(map(str, items)))


def page(*parts: str) -> str:
    """Parts apart by an empty line."""
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"
