"""Tests of programs, as a prompt has them, and what a program must give."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

RELATIVE = 1e-6
"""By how much a float may differ."""


@dataclass(frozen=True, slots=True)
class TextCase:
    """A program reads ``given`` and is to write ``expected``."""

    given: str
    expected: str

    def passes(self, written: str) -> bool:
        """Whether the lines are the same but for white space at their ends, as judges of contests compare them."""
        return _lines(written) == _lines(self.expected)


@dataclass(frozen=True, slots=True)
class CallCase:
    """``function(*arguments)`` is to give ``expected``, as JSON."""

    function: str
    arguments: list[Any]
    expected: Any


@dataclass(frozen=True, slots=True)
class CheckCase:
    """Source that is run behind the program, and raises if it is wrong. The program sees it: weaker than the others."""

    source: str


Case = TextCase | CallCase | CheckCase


def read_cases(found: object) -> list[Case]:
    """The tests of a prompt; raises :class:`ValueError` with the reason if they are invalid."""
    if not isinstance(found, list) or not found:
        raise ValueError("expected a list of tests with one at least")
    return [_read(each, number) for number, each in enumerate(found)]


def same(value: Any, expected: Any) -> bool:
    """Whether two values of JSON are equal: floats within 1e-6 of their size, a float may stand for an integer, truth
    values are no numbers."""
    if isinstance(value, bool) or isinstance(expected, bool):
        return value is expected
    if isinstance(value, (int, float)) and isinstance(expected, (int, float)):
        if isinstance(value, int) and isinstance(expected, int):
            return value == expected
        try:
            return math.isclose(value, expected, rel_tol=RELATIVE, abs_tol=RELATIVE)
        except OverflowError:
            return False
    if type(value) is not type(expected):
        return False
    if isinstance(value, list):
        return len(value) == len(expected) and all(map(same, value, expected))
    if isinstance(value, dict):
        return value.keys() == expected.keys() and all(
            same(each, expected[key]) for key, each in value.items()
        )
    return bool(value == expected)


def _read(found: object, number: int) -> Case:
    if isinstance(found, dict):
        given, expected = found.get("input"), found.get("output")
        if isinstance(given, str) and isinstance(expected, str):
            return TextCase(given, expected)
        function, arguments = found.get("function"), found.get("arguments")
        if (
            isinstance(function, str)
            and function.isidentifier()
            and isinstance(arguments, list)
            and "result" in found
        ):
            json.dumps(found)
            return CallCase(function, arguments, found["result"])
        if isinstance(found.get("check"), str):
            return CheckCase(found["check"])
    raise ValueError(
        f"test {number} is {found!r:.80}; expected {{'input': text, 'output': text}}, {{'function': name, 'arguments': list, "
        "'result': JSON}} or {{'check': source}}"
    )


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]
