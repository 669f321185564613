"""Whether drafts are tried, and how long: decided by what forward passes cost here, and by how many drafts were right."""

from __future__ import annotations

import time
from collections import deque
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from astraflow_plugin_torch_engine.batch import DecodingBatch, Job
from astraflow_plugin_torch_engine.history import (
    CONTEXT,
    LONGEST,
    ORDERS,
    READER,
    Proposal,
    TokenHistory,
    new_readers,
)

Int64 = npt.NDArray[np.int64]

DEPTHS = (1, 3, 7, LONGEST)
"""How many tokens of each draft one forward pass may verify."""

_START, _STAY = 1.1, 1.0
"""Expected tokens a second, over those without drafts, from which on drafts are tried, and below which no longer."""
_OBSERVED = 9  # forward passes of a kind, of which the median counts
_ENOUGH = 3
_FORGOTTEN_AFTER = 1000  # steps in which a kind of forward pass was not made
_PLAIN_EVERY = 64  # steps, so that what a step costs without drafts stays known
_LEAST_DRAFTS = 24  # drafted tokens of a kind of match, before it is relied upon
_DECAY = 0.98
_LOOKS = 8  # in vain, one after the other, before there are fewer
_MOST_SKIPPED = 128
_BUSY_LAG, _IDLE_LAG = 4, 32  # steps after which what was sampled is indexed
_MOST_PROMPT = 2048  # tokens of a prompt that are indexed, its last
_PENDING_ROWS = 64


class DraftLength:
    """Chooses how many tokens of the drafts to verify in a step, 0 for none: that with the most tokens a second.

    Costs: the median of the last seconds of steps with about as many rows and as many drafted tokens. Rewards: how often a
    drafted token was right, by the kind of match, whether it was verified or only compared with what was sampled.
    """

    def __init__(self) -> None:
        self._seconds: dict[tuple[int, int], deque[float]] = {}
        self._when: dict[tuple[int, int], int] = {}
        self._right = np.zeros(len(ORDERS) + 1)
        self._tried = np.zeros(len(ORDERS) + 1)
        self._steps = 0
        self._on = False

    def choose(self, proposal: Proposal, most: Int64) -> int:
        """``most``: int64 ``[n]``, the longest draft that each row can take."""
        size = len(most)
        plain = self._cost(size, 0)
        if plain is None or self._steps % _PLAIN_EVERY == 0:
            return 0
        lengths = np.minimum((proposal.tokens >= 0).sum(1), most)
        chance = np.where(self._tried >= _LEAST_DRAFTS, self._right / np.maximum(self._tried, 1), 0)
        gains = np.zeros((len(chance), LONGEST + 1))
        gains[:, 1:] = np.cumsum(chance[:, None] ** np.arange(1, LONGEST + 1), axis=1)
        rates = [
            plain
            * (1 + gains[proposal.kind, np.minimum(lengths, depth)].sum() / size)
            / (self._cost(size, depth) or self._guess(size, depth, plain))
            for depth in DEPTHS
        ]
        best = int(np.argmax(rates))
        self._on = rates[best] >= (_STAY if self._on else _START)
        return DEPTHS[best] if self._on else 0

    def observe_step(self, rows: int, depth: int, seconds: float) -> None:
        """A step of so many rows and drafted tokens took so long."""
        self._steps += 1
        key = _size_class(rows), depth
        if self._steps - self._when.get(key, self._steps) > _FORGOTTEN_AFTER:
            self._seconds[key].clear()
        self._when[key] = self._steps
        self._seconds.setdefault(key, deque(maxlen=_OBSERVED)).append(seconds)

    def observe_drafts(self, kind: Int64, right: Int64, wrong: Int64) -> None:
        """Of each row's draft of this ``kind``, ``right`` tokens were sampled, too, and ``wrong`` (0 or 1) was the first that
        was not."""
        size = len(self._tried)
        tried = np.bincount(kind, right + wrong, size)
        fading = np.where(tried > 0, _DECAY, 1.0)
        self._right = self._right * fading + np.bincount(kind, right, size)
        self._tried = self._tried * fading + tried

    def _cost(self, rows: int, depth: int) -> float | None:
        key = _size_class(rows), depth
        known = self._seconds.get(key, ())
        if len(known) < _ENOUGH or (depth and self._steps - self._when[key] > _FORGOTTEN_AFTER):
            return None
        return sorted(known)[len(known) // 2]

    def _guess(self, rows: int, depth: int, plain: float) -> float:
        """Of a step that was never made: as of one with as many tokens; if there was none either, a low one."""
        return self._cost(rows * (1 + depth), 0) or plain * (1 + 0.1 * depth)


class Speculation:
    """The drafts of a batch: keeps the history, looks for drafts, and looks less often while they do not pay.

    Rows of the batch are named by their place, as in :class:`DecodingBatch`; :meth:`begin` and :meth:`remove` follow it.
    """

    def __init__(self, capacity: int, tokens: int, cpu_clock: bool) -> None:
        self.history = TokenHistory(tokens)
        self.length = DraftLength()
        self.drafted = 0
        self.clock = time.thread_time if cpu_clock else time.perf_counter
        self._readers = np.zeros(capacity, READER)
        self._pending: list[tuple[npt.NDArray[np.int32], Int64, npt.NDArray[np.void]]] = []
        self._pending_rows = 0
        self._lag = 0
        self._proposal: Proposal | None = None
        self._depth = 0
        self._vain, self._skip, self._skipped = 0, 0, 0

    def begin(self, batch: DecodingBatch, jobs: list[Job], first: int) -> None:
        """Rows from ``first`` on are of ``jobs``."""
        prompts = {job.request.prompt.tobytes(): job.request.prompt for job in jobs}
        numbers = {key: int.from_bytes(blake2b(key, digest_size=8).digest()) for key in prompts}
        scopes = [numbers[job.request.prompt.tobytes()] for job in jobs]
        self._readers[first : batch.size] = new_readers(np.array(scopes, np.uint64))
        ends = [prompt[-_MOST_PROMPT:] for prompt in prompts.values()]
        lengths = np.array([len(end) for end in ends])
        text = np.full((len(ends), CONTEXT + int(lengths.max())), -1, np.int32)
        for row, end in zip(text, ends, strict=True):
            row[CONTEXT : CONTEXT + len(end)] = end
        self._wait(text, lengths, new_readers(np.array(list(numbers.values()), np.uint64)))

    def drafts(self, batch: DecodingBatch) -> Int64 | None:
        """int64 ``[size, k]`` to verify in this step, -1 where there is none, or ``None``: decode one token."""
        self._proposal, self._depth = None, 0
        self._lag += 1
        if self._lag >= (_IDLE_LAG if self._skip else _BUSY_LAG):
            self._index(batch)
        if self._skipped < self._skip:
            self._skipped += 1
            return None
        self._skipped = 0
        rows = batch.rows
        contexts = batch.text[
            np.arange(batch.size)[:, None], rows["count"][:, None] + np.arange(CONTEXT)
        ]
        self._proposal = self.history.propose(contexts, self._readers["scope"][: batch.size])
        room = np.maximum(rows["limit"] - rows["count"] - 1, 0)
        self._depth = depth = self.length.choose(self._proposal, room)
        if not depth:
            self._vain += 1
            if self._vain >= _LOOKS:
                self._vain, self._skip = 0, min(max(1, 2 * self._skip), _MOST_SKIPPED)
            return None
        self._vain = self._skip = 0
        drafts = self._proposal.tokens[:, :depth]
        return np.where(np.arange(depth) < room[:, None], drafts, -1)

    def observe(self, sampled: Int64, drafts: Int64 | None, seconds: float) -> None:
        """A step is over. ``sampled``: int64 ``[n, 1 + k]``, the token at each place, of which those behind the first wrong
        draft do not count; ``drafts`` as they were returned."""
        self.length.observe_step(len(sampled), self._depth, seconds)
        if self._proposal is None:
            return
        compared = self._proposal.tokens[:, :1] if drafts is None else drafts
        equal = np.logical_and.accumulate(sampled[:, : compared.shape[1]] == compared, axis=1)
        right = equal.sum(1)
        given = (compared >= 0).sum(1)
        self.length.observe_drafts(self._proposal.kind, right, (right < given).astype(np.int64))
        if drafts is not None:
            self.drafted += int(given.sum())

    def remove(self, batch: DecodingBatch, ended: Int64) -> None:
        """Rows ``ended`` are about to be removed: they are indexed later."""
        counts = batch.rows["count"][ended]
        width = CONTEXT + int(counts.max(initial=0))
        self._wait(batch.text[ended, :width], counts, self._readers[ended])

    def move(self, source: Int64, target: Int64) -> None:
        """Rows have moved."""
        self._readers[target] = self._readers[source]

    def _wait(
        self, text: npt.NDArray[np.int32], counts: Int64, readers: npt.NDArray[np.void]
    ) -> None:
        self._pending.append((text, counts, readers))
        self._pending_rows += len(counts)
        if self._pending_rows >= _PENDING_ROWS:
            self._index_pending()

    def _index(self, batch: DecodingBatch) -> None:
        self._lag = 0
        self._index_pending()
        if batch.size:
            self.history.extend(batch.text, batch.rows["count"], self._readers[: batch.size])

    def _index_pending(self) -> None:
        if not self._pending:
            return
        pending, self._pending, self._pending_rows = self._pending, [], 0
        counts = np.concatenate([counts for _, counts, _ in pending])
        text = np.full((len(counts), max(part.shape[1] for part, _, _ in pending)), -1, np.int32)
        first = 0
        for part, _, _ in pending:
            text[first : first + len(part), : part.shape[1]] = part
            first += len(part)
        self.history.extend(text, counts, np.concatenate([readers for _, _, readers in pending]))


def _size_class(rows: int) -> int:
    """Two for each power of two."""
    top = rows.bit_length()
    return 2 * top + (rows >> max(0, top - 2) & 1)
