"""Prompt source ``digits``: what a small model learns by reinforcement alone, in a minute.

``x12345=`` asks for the nine's complement ``87654``; other operations have other letters.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np
import xxhash

from astraflow_contrib_prompts.config import DigitsConfig
from astraflow_core.errors import PromptError
from astraflow_core.types import ComponentContext, Prompt

LETTERS = {"complement": "x", "copy": "c", "reverse": "r", "sort": "s"}
_HELD_OUT_TENTHS = 1
_MOST_ENUMERATED = 6
_MOST_DRAWN = 1_000_000
_NINES = str.maketrans("0123456789", "9876543210")


class Digits:
    """``size`` different prompts of a split, chosen and ordered by ``seed``.

    The split of a digit string depends on nothing but the string, so the splits are disjoint whatever the
    seeds, sizes and operations.
    """

    def __init__(self, config: DigitsConfig, context: ComponentContext) -> None:
        self._operation = config.operation
        wanted = config.size
        if wanted is None and config.digits > _MOST_ENUMERATED:
            raise PromptError(f"prompt source 'digits' needs size with digits = {config.digits}")
        if config.digits > _MOST_ENUMERATED and wanted is not None and wanted > _MOST_DRAWN:
            raise PromptError(f"prompt source 'digits': size {wanted} is above {_MOST_DRAWN}")
        out = config.split == "held_out"
        texts = (text for text in _in_order(config.digits, config.seed) if held_out(text) == out)
        self._strings = list(islice(texts, wanted))
        if not self._strings or (wanted is not None and len(self._strings) < wanted):
            raise PromptError(
                f"prompt source 'digits': split {config.split!r} of digits = {config.digits} has "
                f"{len(self._strings)} prompts, fewer than size = {wanted or 1}"
            )

    def __len__(self) -> int:
        return len(self._strings)

    def __getitem__(self, index: int) -> Prompt:
        if not 0 <= index < len(self):
            raise IndexError(f"prompt {index} of {len(self)}")
        text = self._strings[index]
        return Prompt(
            id=f"{self._operation}:{text}",
            data={
                "prompt": f"{LETTERS[self._operation]}{text}=",
                "answer": apply(self._operation, text),
            },
        )


def held_out(text: str) -> bool:
    """Whether a digit string belongs to the held-out tenth."""
    return xxhash.xxh3_64_intdigest(b"held out? " + text.encode()) % 10 < _HELD_OUT_TENTHS


def apply(operation: str, text: str) -> str:
    """The right answer."""
    if operation == "complement":
        return text.translate(_NINES)
    if operation == "reverse":
        return text[::-1]
    return "".join(sorted(text)) if operation == "sort" else text


def _in_order(digits: int, seed: int) -> Iterator[str]:
    """All digit strings of a length once, in an order drawn from ``seed`` (without end if they are too
    many to enumerate; then no string comes twice either)."""
    generator = np.random.default_rng([seed, digits])
    count = 10**digits
    if digits <= _MOST_ENUMERATED:
        return map(f"{{:0{digits}}}".format, generator.permutation(count).tolist())
    return map(f"{{:0{digits}}}".format, _without_end(generator, count))


def _without_end(generator: np.random.Generator, count: int) -> Iterator[int]:
    seen: set[int] = set()
    while True:
        for number in generator.integers(0, count, 4096).tolist():
            if number not in seen:
                seen.add(number)
                yield number
