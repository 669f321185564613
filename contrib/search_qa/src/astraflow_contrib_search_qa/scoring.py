"""Exact match and F1 of an answer, after SQuAD."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized(text: str) -> str:
    """Lower case, without punctuation, articles and more than one space, as ``normalize_answer`` of SQuAD's evaluation v1.1
    (Rajpurkar et al., 2016, https://arxiv.org/abs/1606.05250)."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact(answer: str, right: Iterable[str]) -> float:
    """1 if it is one of the right ones, else 0."""
    return float(normalized(answer) in map(normalized, right))


def f1(answer: str, right: Iterable[str]) -> float:
    """The best F1 of its words with those of a right one: ``2 p r / (p + r)``, where ``p`` and ``r`` are the common words,
    each as often as in both, over the words of the answer and of the right one."""
    return max(
        (_f1(normalized(answer).split(), normalized(one).split()) for one in right), default=0.0
    )


def _f1(answer: list[str], right: list[str]) -> float:
    common = (Counter(answer) & Counter(right)).total()
    if not common:
        return float(answer == right)
    precision, recall = common / len(answer), common / len(right)
    return 2 * precision * recall / (precision + recall)
