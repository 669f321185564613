"""The turns of an episode as text, for the status and the pages of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from astraflow_core.types import Sequence
from astraflow_wire.groups import Turn
from astraflow_wire.limits import MAX_TURNS

Tokens = npt.NDArray[np.int32]
Decode = Callable[[Tokens], str]

TURN_CHARACTERS = 1000
"""The most characters of a turn; a longer one is shown by its beginning and its end."""
EPISODE_CHARACTERS = 1 << 14
"""The most characters of all turns: every reply of the status has several episodes."""


def shown_turns(sequences: Iterable[Sequence], decode: Callable[[str], Decode]) -> list[Turn]:
    """All turns of an episode in the order of its ``sequences``, read from the tokens themselves: what the model saw and
    what it sampled. A sequence that begins with all of the previous one, of the same policy, continues that one.
    ``decode``: policy → how its tokens become text."""
    spans = [
        (span.role, span.policy, span.tokens[span.start : span.end]) for span in spans_of(sequences)
    ]
    half = MAX_TURNS // 2
    omitted = len(spans) - (MAX_TURNS - 1) if len(spans) > MAX_TURNS else 0
    if omitted:
        spans = spans[:half] + spans[half + omitted :]
    most = min(TURN_CHARACTERS, EPISODE_CHARACTERS // max(1, len(spans)))
    turns = [
        Turn(role, policy, _text(tokens, decode(policy), most)) for role, policy, tokens in spans
    ]
    if omitted:
        turns.insert(half, Turn("omitted", "", f"{omitted} turns omitted"))
    return turns


@dataclass(frozen=True, slots=True)
class TurnSpan:
    """A turn: the ``tokens`` from ``start`` to before ``end`` of number ``sequence`` of an episode's sequences."""

    role: str
    policy: str
    sequence: int
    tokens: Tokens
    start: int
    end: int


def spans_of(sequences: Iterable[Sequence]) -> Iterator[TurnSpan]:
    """The turns of an episode in order. A sequence that begins with all of the previous one, of the same
    policy, continues that one."""
    before: dict[str, Tokens] = {}
    for index, sequence in enumerate(sequences):
        known = before.get(sequence.policy)
        tokens = before[sequence.policy] = sequence.tokens
        goes_on = known is not None and np.array_equal(tokens[: len(known)], known)
        start = len(known) if known is not None and goes_on else 0
        sampled = sequence.versions[start:] >= 0
        edges = [0, *(np.flatnonzero(np.diff(sampled)) + 1).tolist(), len(sampled)]
        for begin, end in pairwise(edges):
            if begin == end:
                continue
            role = "assistant" if sampled[begin] else "environment" if start + begin else "prompt"
            yield TurnSpan(role, sequence.policy, index, tokens, start + begin, start + end)


def _text(tokens: Tokens, decode: Decode, most: int) -> str:
    """At most ``most`` characters; decodes at most twice as many tokens, since a token has at least
    one.
    """
    half = (most - 1) // 2
    tokens = tokens[tokens >= 0]
    if len(tokens) > 2 * most:
        head, tail = decode(tokens[:most]), decode(tokens[-most:])
    else:
        head = tail = decode(tokens)
        if len(head) <= most:
            return head
    return f"{head[:half]}…{tail[-half:]}"
