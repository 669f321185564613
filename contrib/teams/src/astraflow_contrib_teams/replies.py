"""What roles read out of each other's replies. Policies write anything, so each pattern takes linear time, and what
cannot be read is ``None`` or nothing."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

REASONING_END = "</think>"
FENCE = "```"
_VERDICT = re.compile(r"\bVERDICT[ *:]{1,9}(ACCEPT|REJECT)", re.IGNORECASE)
_CHOICE = re.compile(r"\bCHOICE[ *:#]{1,9}(\d{1,3})(?!\d)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ProgramTest:
    """A test of a program: its input, and the output that is expected."""

    input: str
    output: str


def visible(text: str) -> str:
    """What follows the reasoning."""
    return text.rpartition(REASONING_END)[2].strip()


def accepted(text: str) -> bool | None:
    """The last verdict."""
    found = _VERDICT.findall(text)
    return found[-1].upper() == "ACCEPT" if found else None


def choice(text: str, most: int) -> int | None:
    """The index, from 0, of the last choice from 1 to ``most``."""
    found = _CHOICE.findall(text)
    number = int(found[-1]) if found else 0
    return number - 1 if 1 <= number <= most else None


def last_block(text: str) -> str | None:
    """The content of the last complete code block, without the name of its language."""
    parts = text.split(FENCE)
    inside = parts[1::2] if len(parts) % 2 else parts[1:-1:2]
    if not inside:
        return None
    head, newline, body = inside[-1].partition("\n")
    return body if newline and len(head.split()) <= 1 else inside[-1]


def cases_in(text: str, most: int) -> list[ProgramTest]:
    """The first ``most`` tests of a JSON list in the last code block, or that is the whole text."""
    block = last_block(text)
    try:
        found = json.loads(text if block is None else block)
    except (ValueError, RecursionError):
        return []
    return as_cases(found)[:most]


def as_cases(found: object) -> list[ProgramTest]:
    """The elements of a list that are ``{"input": text, "output": text}``."""
    if not isinstance(found, list):
        return []
    return [
        ProgramTest(each["input"], each["output"])
        for each in found
        if isinstance(each, dict)
        and isinstance(each.get("input"), str)
        and isinstance(each.get("output"), str)
    ]


def subtasks(text: str, most: int) -> list[str]:
    """The first ``most`` texts between ``<subtask>`` and ``</subtask>``."""
    parts = (part.partition("</subtask>") for part in text.split("<subtask>")[1:])
    return [task.strip() for task, end, _ in parts if end and task.strip()][:most]
