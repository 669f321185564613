"""Pieces of TOML text."""

from __future__ import annotations

from typing import Any

import tomli_w


def value(content: Any) -> str:
    """A string, number, boolean, list or table as TOML writes it in one line."""
    if isinstance(content, dict):
        return (
            "{ "
            + ", ".join(f"{_key(name)} = {value(entry)}" for name, entry in content.items())
            + " }"
        )
    if isinstance(content, list):
        return "[" + ", ".join(value(entry) for entry in content) + "]"
    return tomli_w.dumps({"x": content}).removeprefix("x = ").rstrip("\n")


def _key(name: str) -> str:
    return tomli_w.dumps({name: 0}).removesuffix(" = 0\n")


def comment(text: str) -> str:
    """Lines of a comment."""
    return "".join(f"# {line}\n" for line in text.splitlines())


def table(name: str, note: str, entries: dict[str, Any]) -> str:
    """A table with a comment above it, if ``note`` is not empty. An entry ``(value, remark)`` has a remark at the end of its line."""
    lines = [*comment(note).splitlines(), f"[{name}]"]
    for key, content in entries.items():
        remark = ""
        if isinstance(content, tuple):
            content, remark = content
        line = f"{key} = {value(content)}"
        lines.append(f"{line:<30} # {remark}" if remark else line)
    return "\n".join(lines) + "\n"
