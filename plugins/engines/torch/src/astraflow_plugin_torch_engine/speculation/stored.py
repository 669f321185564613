"""What was sampled elsewhere: spans of stored sequences, each with the prompt that a request for it had."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from astraflow_plugin_torch_engine.cache import bucket

MOST_SPANS = 1024
"""Of one call: each costs some 20 µs of the decoding thread, beside its tokens."""
_AT_ONCE = 1 << 14  # places of a padded array of spans


class StoredSpan(NamedTuple):
    """``tokens`` int32 ``[T]`` were sampled after ``prompt``, int32 ``[P]``."""

    prompt: npt.NDArray[np.int32]
    tokens: npt.NDArray[np.int32]


def stored_spans(
    tokens: npt.NDArray[np.int32],
    sampled: npt.NDArray[np.bool_],
    lengths: Sequence[int],
    vocab: int,
) -> list[StoredSpan]:
    """The spans of sampled tokens of sequences of ``lengths``, which are concatenated in ``tokens`` and ``sampled``, ``[N]``
    each; the last :data:`MOST_SPANS` of them. :class:`ValueError` if the lengths do not fit, or a sampled token is none of
    ``vocab``."""
    if not len(tokens) == len(sampled) == sum(lengths):
        raise ValueError(
            f"stored sequences: {len(tokens)} tokens and {len(sampled)} flags; expected {sum(lengths)}, the sum of the lengths"
        )
    ids = tokens[sampled]
    if len(ids) and not (int(ids.min()) >= 0 and int(ids.max()) < vocab):
        raise ValueError(
            f"stored sequences: sampled token ids from {ids.min()} to {ids.max()}; expected 0 to {vocab - 1}. They are of "
            "another model, or were changed by [rollouts] redact; set stored_drafts_kb = 0"
        )
    sizes = np.asarray(lengths, np.int64)
    sequence = np.repeat(np.arange(len(sizes)), sizes)
    continues = sampled[1:] & sampled[:-1] & (sequence[1:] == sequence[:-1])
    begins, ends = sampled.copy(), sampled.copy()
    begins[1:] &= ~continues
    ends[:-1] &= ~continues
    first, last = np.flatnonzero(begins)[-MOST_SPANS:], np.flatnonzero(ends)[-MOST_SPANS:]
    start = (np.cumsum(sizes) - sizes)[sequence[first]]
    return [
        StoredSpan(tokens[start:begin], tokens[begin : end + 1])
        for start, begin, end in zip(start.tolist(), first.tolist(), last.tolist(), strict=True)
    ]


def of_like_lengths(spans: Iterable[StoredSpan]) -> Iterator[list[StoredSpan]]:
    """The spans in lots of lengths that differ by a factor of two at most, so that a padded array of them is small; in their
    order within a length."""

    def size(span: StoredSpan) -> int:
        return bucket(len(span.tokens))

    for width, alike in groupby(sorted(spans, key=size), size):
        found, most = list(alike), max(1, _AT_ONCE // width)
        for first in range(0, len(found), most):
            yield found[first : first + most]
