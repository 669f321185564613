"""Texts of prompts as they are compared."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from itertools import islice

import xxhash

from astraflow_contrib_prompts.messages import text_of
from astraflow_core.types import Prompt

_WORD = re.compile(r"\w+")


def normalised(prompt: Prompt) -> str:
    """The text of a prompt without differences of case, of white space and of Unicode forms (NFKC)."""
    return " ".join(unicodedata.normalize("NFKC", text_of(prompt.data)).casefold().split())


def text_hash(text: str, salt: str = "") -> int:
    """64 bits of a text, the same on every machine."""
    return xxhash.xxh3_64_intdigest(f"{salt}\0{text}".encode("utf-8", "surrogatepass"))


def ngrams(text: str, count: int) -> Iterator[int]:
    """Hashes of all runs of ``count`` words."""
    words = _WORD.findall(text)
    shifted = (islice(words, start, None) for start in range(count))
    for run in zip(*shifted, strict=False):
        yield text_hash(" ".join(run))
