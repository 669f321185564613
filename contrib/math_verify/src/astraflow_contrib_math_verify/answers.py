"""The answer in a text, and the verdict on it where numbers or letters decide."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from fractions import Fraction

LONGEST = 256
"""Characters of an answer; a longer one is wrong, for a policy may write anything and parsing must stay cheap."""
_DEEPEST = 16
_BOX = "\\boxed{"
_CHAINED = re.compile(r"\s*(?:,?\s*and|,?\s*or|,)\s*")
_DIGITS = r"\d{1,40}"
_DECIMAL = rf"(?:\d{{1,3}}(?:,\d{{3}}){{1,12}}|{_DIGITS})(?:\.\d{{1,40}})?|\.\d{{1,40}}"
_PLAIN = re.compile(rf"([-+−]?)({_DECIMAL})", re.ASCII)
_RATIO = re.compile(
    rf"([-+−]?)(?:({_DIGITS})\s?/\s?({_DIGITS})|\\[dt]?frac\{{({_DIGITS})\}}\{{({_DIGITS})\}})",
    re.ASCII,
)
_NUMBERS = re.compile(rf"(?<![\w.,])[-−]?(?:{_DECIMAL})(?![\w.,]*\d)", re.ASCII)
_OPERATORS = frozenset("+-−*×/÷^=%()")
_WRAPPED = (("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"))
# Two decimals that differ by less may be equal for math-verify, which rounds to six places.
_SURELY_DIFFERENT = Fraction(1, 10_000)
# What is worth a worker's time: no tower of powers, no factorial or power of a large number.
_COSTLY = re.compile(
    r"\^[^\^]{0,40}\^[^\^]{0,40}\^|\d{41}|\d{5}\s?!|!\s?!|\^\s?\{?\s?-?\d{5}|\^\s?\{?\s?\d+\s?\^\s?\{?\s?\d"
)
# What an answer has only where the expected one has it, too: what is still to be computed, and large powers.
_UNFINISHED = re.compile(r"\\(?:sum|prod|i{0,2}int|oint|lim)(?![a-z])")
_LARGE_POWER = re.compile(r"\^\s?\{?\s?-?(\d{3,})")


@dataclass(frozen=True, slots=True)
class GivenAnswer:
    """What a completion answers: ``text``, and whether it stood in a ``box``, which is then all there is of it."""

    text: str
    box: bool


def given_answer(completion: str) -> GivenAnswer:
    """The content of the last ``\\boxed{}``; the whole of the last ones that ``and``, ``or`` or a comma joins; without
    a box the end of the text."""
    boxes: list[tuple[int, int]] = []
    end = len(completion)
    while (start := completion.rfind(_BOX, 0, end)) >= 0:
        closed = _closing(completion, start + len(_BOX))
        if closed is None or (
            boxes and not _CHAINED.fullmatch(completion[closed + 1 : boxes[-1][0]][:20])
        ):
            break
        boxes.append((start, closed))
        if len(boxes) > 6:
            break
        end = start
    if not boxes:
        return GivenAnswer(_end_of(completion), False)
    if len(boxes) == 1:
        return GivenAnswer(completion[boxes[0][0] + len(_BOX) : boxes[0][1]], True)
    return GivenAnswer(completion[boxes[-1][0] : boxes[0][1] + 1], False)


def _closing(text: str, begin: int) -> int | None:
    """The position of the bracket that closes the one before ``begin``; an answer that is too long is treated as unclosed."""
    depth = 1
    for index in range(begin, min(len(text), begin + 4 * LONGEST)):
        if text[index] == "{":
            depth += 1
        elif text[index] == "}":
            depth -= 1
            if not depth:
                return index
    return None


def _end_of(text: str) -> str:
    """The last characters, from the beginning of a word."""
    text = text.rstrip()
    if len(text) <= LONGEST:
        return text
    tail = text[-LONGEST:]
    return tail.partition(" ")[2] or tail


def number(text: str) -> Fraction | None:
    """The value of a text that is a number and nothing else: integer, decimal, with commas between thousands, or
    fraction, also in LaTeX."""
    text = bare(text)
    if match := _PLAIN.fullmatch(text):
        sign, digits = match.groups()
        value = Fraction(digits.replace(",", ""))
    elif match := _RATIO.fullmatch(text):
        sign, *parts = match.groups()
        numerator, denominator = (int(part) for part in parts if part is not None)
        if not denominator:
            return None
        value = Fraction(numerator, denominator)
    else:
        return None
    return -value if sign in ("-", "−") else value


def bare(text: str) -> str:
    """Without white space, dollars and a full stop around it."""
    text = text.strip()
    if text.endswith(".") and not text.endswith(".."):
        text = text[:-1].rstrip()
    for begin, end in _WRAPPED:
        if len(text) > len(begin + end) and text.startswith(begin) and text.endswith(end):
            return text[len(begin) : -len(end)].strip()
    return text


def quick_verdict(expected: str, given: GivenAnswer) -> bool | None:
    """Whether the answer is right, where this costs microseconds; ``None`` if it takes mathematics."""
    if given.box and bare(expected) == bare(given.text) != "":
        return True
    wanted = number(expected)
    if wanted is None:
        return (
            False
            if not given.text.strip() or (given.box and too_costly(given.text, expected))
            else None
        )
    value = number(given.text) if given.box else _said_number(given.text)
    if value == wanted:
        return True
    if value is not None and abs(value - wanted) > _SURELY_DIFFERENT * (1 + abs(wanted)):
        return False
    return (
        False if too_costly(given.text, expected) or not any(map(str.isalnum, given.text)) else None
    )


def _said_number(text: str) -> Fraction | None:
    """The last number of a text in which nothing but that can be the answer."""
    if "\\" in text or "$" in text or "answer" in text.lower():
        return number(text)
    found = deque(_NUMBERS.finditer(text), maxlen=1)
    if not found:
        return None
    last = found.pop()
    around = text[: last.start()].rstrip()[-1:] + text[last.end() :].lstrip()[:1]
    return None if _OPERATORS & set(around) else number(last[0])


def too_costly(text: str, expected: str) -> bool:
    """Whether an answer is longer or deeper than answers are, asks for numbers that no memory holds, or leaves sums,
    integrals and large powers to be computed that the expected answer does not have."""
    if len(text) > LONGEST or _COSTLY.search(text):
        return True
    if any(found[0] not in expected for found in _UNFINISHED.finditer(text)):
        return True
    if any(found[1] not in expected for found in _LARGE_POWER.finditer(text)):
        return True
    depth = deepest = 0
    for character in text:
        depth += (character in "({[") - (character in ")}]")
        deepest = max(deepest, depth)
    return deepest > _DEEPEST
