"""Tokens of the past, found by the tokens before them: the source of drafts for speculative decoding.

No draft model: what a policy samples, it often samples again, in the other samples of a group, in later epochs of the same
prompt, or by copying from its prompt (prompt lookup decoding, Saxena 2023; suffix decoding, Oliaro et al. 2024,
arXiv:2411.04975). A draft is a guess; :mod:`.lengths` decides whether it is tried, and the model whether it is right.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from astraflow_plugin_torch_engine.cache import bucket

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
UInt64 = npt.NDArray[np.uint64]

CONTEXT = 16
"""The most tokens by which a place is found."""

ORDERS = ((16, False), (8, False), (4, True), (2, True))
"""The kinds of matches, best first: how many last tokens are equal, and whether the prompts must be equal, too."""

BYTES_PER_TOKEN = 4 + 8 * 2 * len(ORDERS) + 1
LONGEST = 15
"""Most tokens of a draft."""

_BLOCK = 16  # tokens; a draft lies in at most two blocks
_EMPTY = -1
_POSITION_BITS = np.uint64(40)
_POSITION = np.uint64((1 << 40) - 1)
_FACTORS = np.random.default_rng(2411).integers(1, 1 << 63, CONTEXT, np.uint64) * 2 + 1
_SALTS = np.random.default_rng(4975).integers(1, 1 << 63, len(ORDERS), np.uint64)
_MIX = np.uint64(0xD6E8FEB86659FD93)  # odd, of the mixer rrxmrrxmsx_0 by Evensen

READER = np.dtype(
    [
        ("scope", np.uint64),  # of the prompt
        ("block", np.int64),  # into which it is copied
        ("used", np.int64),  # tokens of that block
        ("seen", np.int64),  # sampled tokens that are indexed
    ]
)
"""How far a sequence has been indexed."""


class Proposal(NamedTuple):
    """``tokens`` int64 ``[n, LONGEST]``, -1 where there is none; ``kind`` int64 ``[n]``, an index of ``ORDERS``, or
    ``len(ORDERS)`` for rows without a draft."""

    tokens: Int64
    kind: Int64


class TokenHistory:
    """The last ``tokens`` tokens (rounded up to a power of two), ``BYTES_PER_TOKEN`` each, and an index of the tokens before
    each of them. Sequences lie in blocks, which are overwritten in the order in which they were begun.

    The index is a direct-mapped table: a later sequence replaces an earlier one, since the policy that sampled it is newer.
    An entry holds 24 bits of its key, so that few others are taken for it; one that is costs a rejected draft.
    """

    def __init__(self, tokens: int) -> None:
        size = max(bucket(tokens), 64 * _BLOCK)
        self._blocks = size // _BLOCK
        self._text = np.full((self._blocks, _BLOCK), _EMPTY, np.int32)
        self._next = np.full(self._blocks, _EMPTY, np.int64)
        self._head = 0  # blocks begun so far
        bits = (2 * size * len(ORDERS)).bit_length() - 1
        self._shift = np.uint64(64 - bits)
        self._table = np.zeros(1 << bits, np.uint64)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays; they do not grow."""
        return self._text.nbytes + self._next.nbytes + self._table.nbytes

    def extend(self, text: Int32, counts: Int64, readers: npt.NDArray[np.void]) -> None:
        """Index what is new of ``n`` sequences.

        ``text``: ``[n, CONTEXT + longest]``, the last tokens of the prompt before the sampled ones, -1 for none;
        ``counts``: sampled tokens of each; ``readers``: ``[n]`` of dtype ``READER``, updated.
        """
        new = counts - readers["seen"]
        total = int(new.sum())
        if not total:
            return
        row = np.repeat(np.arange(len(new)), new)
        nth = np.arange(total) - np.repeat(np.cumsum(new) - new, new)  # of its row's new tokens
        column = readers["seen"][row] + nth
        positions = self._place(readers, new, row, nth)
        flat = text.reshape(-1)
        start = row * text.shape[1] + column
        self._text.reshape(-1)[positions % self._text.size] = flat[start + CONTEXT]
        keys = _keys(flat[start[:, None] + np.arange(CONTEXT)], readers["scope"][row])
        entries = (keys << _POSITION_BITS) | positions.astype(np.uint64)
        self._table[keys >> self._shift] = entries
        readers["seen"] = counts

    def _place(self, readers: npt.NDArray[np.void], new: Int64, row: Int64, nth: Int64) -> Int64:
        """The position of each new token: blocks begun so far × ``_BLOCK`` + its place in the block."""
        lost = readers["block"] < self._head - self._blocks // 2  # soon overwritten
        readers["block"][lost], readers["used"][lost] = _EMPTY, _BLOCK
        block, used = readers["block"], readers["used"]
        more = (used + new - 1) // _BLOCK
        first = self._head + np.cumsum(more) - more
        begun = np.arange(self._head, self._head + int(more.sum()))
        self._text[begun % self._blocks] = _EMPTY
        self._next[begun % self._blocks] = _EMPTY
        self._head += len(begun)
        offset = used[row] + nth
        which = offset // _BLOCK  # 0: the block that the sequence has
        at = np.where(which == 0, block[row], first[row] + which - 1)
        opens = (offset % _BLOCK == 0) & (which > 0)
        before = np.where(which == 1, block[row], at - 1)[opens]
        known = before != _EMPTY
        self._next[before[known] % self._blocks] = at[opens][known]
        some = more > 0
        readers["block"][some] = (first + more - 1)[some]
        readers["used"] = used + new - more * _BLOCK
        return np.asarray(at * _BLOCK + offset % _BLOCK)

    def propose(self, contexts: Int32, scopes: UInt64) -> Proposal:
        """What followed the best match of each row. ``contexts``: int32 ``[n, CONTEXT]``, the last tokens; ``scopes``: uint64
        ``[n]``, of their prompts."""
        keys = _keys(contexts, scopes)
        entries = self._table[keys >> self._shift]
        found = entries & _POSITION
        positions = found.astype(np.int64)
        oldest = (self._head - self._blocks) * _BLOCK
        right = (entries == (keys << _POSITION_BITS) | found) & (positions >= oldest)
        right &= entries != 0
        kind = np.where(right.any(0), right.argmax(0), len(ORDERS))
        best = positions[np.minimum(kind, len(ORDERS) - 1), np.arange(len(kind))]
        return Proposal(self._read(best, kind < len(ORDERS)), kind)

    def _read(self, positions: Int64, wanted: npt.NDArray[np.bool_]) -> Int64:
        block, offset = np.divmod(positions, _BLOCK)
        after = self._next[block % self._blocks]
        columns = offset[:, None] + np.arange(LONGEST)
        beyond = columns >= _BLOCK
        at = np.where(beyond, after[:, None], block[:, None])
        valid = (at > self._head - self._blocks - 1) & (at >= 0) & wanted[:, None]
        tokens = self._text[at % self._blocks, columns % _BLOCK]
        return np.where(valid, tokens, _EMPTY).astype(np.int64)


def new_readers(scopes: UInt64) -> npt.NDArray[np.void]:
    """Of sequences of which nothing has been indexed."""
    readers = np.zeros(len(scopes), READER)
    readers["scope"], readers["block"], readers["used"] = scopes, _EMPTY, _BLOCK
    return readers


def _keys(contexts: Int32, scopes: UInt64) -> UInt64:
    """A key for each of ``ORDERS``: uint64 ``[orders, n]`` of ``contexts`` ``[n, CONTEXT]``."""
    parts = (contexts.astype(np.uint64) + np.uint64(2)) * _FACTORS
    keys = np.empty((len(ORDERS), len(parts)), np.uint64)
    for number, (order, scoped) in enumerate(ORDERS):
        keys[number] = parts[:, -order:].sum(1)
        keys[number] += _SALTS[number]
        if scoped:
            keys[number] += scopes
    keys ^= keys >> np.uint64(32)
    keys *= _MIX
    keys ^= keys >> np.uint64(32)
    keys *= _MIX
    keys ^= keys >> np.uint64(28)
    return keys
