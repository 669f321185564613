"""Filters of rollouts, such as ``step>=10 policy=math reward<0.5 tool=search text~"I give up"``."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from astraflow_core.errors import UserError
from astraflow_core.suggestions import did_you_mean

if TYPE_CHECKING:
    from astraflow_runtime.rollouts.reader import RolloutEntry

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_TERM = re.compile(
    r"""\s*(?:and\s+)?(?P<key>[a-z]+)\s*(?P<operator>!=|<=|>=|=|<|>|~)\s*(?P<value>"[^"]*"|'[^']*'|[^\s"']+)(?=\s|$)"""
)

NUMBERS: dict[str, Callable[[RolloutEntry], Iterable[float]]] = {
    "step": lambda entry: [step for _, step in entry.updates],
    "reward": lambda entry: entry.rewards.values(),
    "length": lambda entry: [entry.tokens] if entry.index >= 0 else [],
    "sampled": lambda entry: [entry.sampled] if entry.index >= 0 else [],
    "turns": lambda entry: [entry.turns] if entry.index >= 0 else [],
    "version": lambda entry: [v for v in entry.versions if v >= 0],
}
"""Numeric key → values of an entry; one match is enough."""
WORDS: dict[str, Callable[[RolloutEntry], Iterable[str]]] = {
    "policy": lambda entry: entry.rewards.keys() | {policy for policy, _ in entry.updates},
    "outcome": lambda entry: [entry.outcome, *(["truncated"] if entry.truncated else [])],
    "tool": lambda entry: entry.tools,
    "error": lambda entry: [word for word in (entry.reason, entry.environment) if word],
    "prompt": lambda entry: [entry.prompt_id],
    "group": lambda entry: [entry.group],
    "raas": lambda entry: [entry.raas],
}
"""Text key → values of an entry; one match is enough."""
TEXT = "text"

HELP = (
    f"terms KEY OPERATOR VALUE, all of which hold; keys: {', '.join((*NUMBERS, *WORDS, TEXT))}; operators: = != < <= > "
    '>= for numbers, = != ~ (contains, in any case) for words, ~ for text; values with spaces in "quotes"'
)


@dataclass(frozen=True, slots=True)
class Term:
    """One condition."""

    key: str
    operator: str
    value: str

    def holds(self, entry: RolloutEntry, texts: Callable[[], Iterable[str]]) -> bool:
        """Whether the condition holds for an entry; ``texts()`` returns its texts."""
        if self.key in NUMBERS:
            compare, number = _COMPARE[self.operator], float(self.value)
            return any(compare(value, number) for value in NUMBERS[self.key](entry))
        words = texts() if self.key == TEXT else WORDS[self.key](entry)
        if self.operator == "~":
            return any(self.value.casefold() in word.casefold() for word in words)
        return (self.value in words) == (self.operator == "=")


@dataclass(frozen=True, slots=True)
class Filter:
    """A conjunction of terms."""

    terms: tuple[Term, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Filter:
        """Parse a filter; an empty one matches everything. :class:`UserError` names what is wrong."""
        terms, place = [], 0
        while text[place:].strip():
            match = _TERM.match(text, place)
            if match is None:
                raise UserError(
                    f"filter: {text[place:].strip()!r} is not a term; expected {HELP}. An example: "
                    'step>=10 reward<0.5 text~"I give up"'
                )
            terms.append(_term(match["key"], match["operator"], match["value"].strip("\"'")))
            place = match.end()
        return cls(tuple(terms))

    @property
    def reads_text(self) -> bool:
        """Whether records must be read for it."""
        return any(term.key == TEXT for term in self.terms)

    def apart(self) -> tuple[Filter, list[str]]:
        """The filter without its terms of texts, for which no record is read, and the casefolded texts of those terms."""
        others = tuple(term for term in self.terms if term.key != TEXT)
        texts = {term.value.casefold(): None for term in self.terms if term.key == TEXT}
        return Filter(others), list(texts)

    def matches(self, entry: RolloutEntry, texts: Callable[[], Iterable[str]]) -> bool:
        """Whether all terms hold for an entry; ``texts()`` is called last, and only if necessary."""
        ranked = sorted(self.terms, key=lambda term: term.key == TEXT)
        return all(term.holds(entry, texts) for term in ranked)


def _term(key: str, operator: str, value: str) -> Term:
    if key in NUMBERS:
        allowed: tuple[str, ...] = tuple(_COMPARE)
        if operator in allowed:
            try:
                float(value)
            except ValueError as error:
                raise UserError(
                    f"filter: {key} is compared with a number, not {value!r}"
                ) from error
    elif key in WORDS:
        allowed = ("=", "!=", "~")
    elif key == TEXT:
        allowed = ("~",)
    else:
        known = [*NUMBERS, *WORDS, TEXT]
        hint = did_you_mean(key, known) or ";"
        raise UserError(f"filter: no key {key!r}{hint} the keys are {', '.join(known)}")
    if operator not in allowed:
        raise UserError(f"filter: {key} takes {' '.join(allowed)}, not {operator!r}")
    return Term(key, operator, value)


EVERYTHING = Filter()
