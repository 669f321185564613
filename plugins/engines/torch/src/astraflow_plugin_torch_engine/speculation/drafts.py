"""The drafts of the running batch: what was sampled is kept, looked up, and tried while that pays."""

from __future__ import annotations

import time
from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from astraflow_plugin_torch_engine.batch import DecodingBatch, Job
from astraflow_plugin_torch_engine.speculation.history import (
    CONTEXT,
    LONGEST,
    READER,
    Proposal,
    TokenHistory,
    new_readers,
)
from astraflow_plugin_torch_engine.speculation.lengths import DraftLengths
from astraflow_plugin_torch_engine.speculation.stored import StoredSpan, of_like_lengths

Int64 = npt.NDArray[np.int64]

_LOOKS = 4  # in vain, one after the other, before there are fewer
_MOST_SKIPPED = 128  # steps between two looks
_BUSY_LAG, _IDLE_LAG = 4, 64  # steps after which what was sampled is indexed
_MOST_PROMPT = 2048  # tokens of a prompt that are indexed, its last
_PENDING_ROWS = 256  # ended rows and prompts that wait to be indexed, at most
_RESTING = 16  # steps skipped, from which on only every fourth lot of them is indexed
_SHARE = 4


class Speculation:
    """The drafts of a batch: keeps the history, looks for drafts, and looks less often while they do not pay.

    Rows of the batch are named by their place, as in :class:`DecodingBatch`; :meth:`begin` and :meth:`remove` follow it.
    """

    def __init__(self, capacity: int, tokens: int, cpu_clock: bool) -> None:
        self.history = TokenHistory(tokens)
        self.lengths = DraftLengths()
        self.counters = {"drafted_tokens": 0, "learned_tokens": 0}
        self.clock = time.thread_time if cpu_clock else time.perf_counter
        self._readers = np.zeros(capacity, READER)
        self._pending: list[tuple[npt.NDArray[np.int32], Int64, npt.NDArray[np.void]]] = []
        self._pending_rows = 0
        self._lag = 0
        self._proposal: Proposal | None = None
        self._vain, self._skip, self._skipped = 0, 0, 0
        self._lots = 0

    def begin(self, batch: DecodingBatch, jobs: list[Job], first: int) -> None:
        """Rows from ``first`` on are of ``jobs``."""
        prompts = {job.request.prompt.tobytes(): job.request.prompt for job in jobs}
        numbers = {key: _scope(prompt) for key, prompt in prompts.items()}
        scopes = [numbers[job.request.prompt.tobytes()] for job in jobs]
        self._readers[first : batch.size] = new_readers(np.array(scopes, np.uint64))
        ends = [prompt[-_MOST_PROMPT:] for prompt in prompts.values()]
        lengths = np.array([len(end) for end in ends])
        text = np.full((len(ends), CONTEXT + int(lengths.max())), -1, np.int32)
        for row, end in zip(text, ends, strict=True):
            row[CONTEXT : CONTEXT + len(end)] = end
        self._wait(text, lengths, new_readers(np.array(list(numbers.values()), np.uint64)))

    def learn(self, spans: Iterable[StoredSpan]) -> bool:
        """Index what was sampled elsewhere, at once. Returns whether drafts pay at present."""
        for some in of_like_lengths(spans):
            counts = np.array([len(span.tokens) for span in some])
            text = np.full((len(some), CONTEXT + int(counts.max())), -1, np.int32)
            for row, (prompt, tokens) in zip(text, some, strict=True):
                last = prompt[-CONTEXT:]
                row[CONTEXT - len(last) : CONTEXT] = last
                row[CONTEXT : CONTEXT + len(tokens)] = tokens
            scopes = np.array([_scope(span.prompt) for span in some], np.uint64)
            self.history.extend(text, counts, new_readers(scopes))
            self.counters["learned_tokens"] += int(counts.sum())
        return self._skip < _RESTING

    def drafts(self, batch: DecodingBatch) -> Int64 | None:
        """int64 ``[size, k]`` to verify in this step, -1 where there is none, or ``None``: decode one token."""
        self._proposal = None
        if self._skipped < self._skip:
            self._skipped += 1
            self._lag += 1
            if self._lag >= _IDLE_LAG:
                self._index(batch)
            return None
        self._skipped = 0
        self._lag += 1
        if self._lag >= _BUSY_LAG:
            self._index(batch)
        rows = batch.rows
        contexts = batch.text[
            np.arange(batch.size)[:, None], rows["count"][:, None] + np.arange(CONTEXT)
        ]
        self._proposal = proposal = self.history.propose(
            contexts, self._readers["scope"][: batch.size]
        )
        room = np.maximum(rows["limit"] - rows["count"] - 1, 0)
        wanted = self.lengths.choose(proposal.kind, np.minimum((proposal.tokens >= 0).sum(1), room))
        if wanted is None or not wanted.any():
            self._vain += 1
            if self._vain >= _LOOKS:
                self._vain, self._skip = 0, min(max(1, 2 * self._skip), _MOST_SKIPPED)
            return None
        self._vain = self._skip = 0
        depth = np.arange(int(wanted.max()))
        return np.where(depth < wanted[:, None], proposal.tokens[:, : len(depth)], -1)

    def observe(self, sampled: Int64, drafts: Int64 | None, seconds: float) -> None:
        """A step is over. ``sampled``: int64 ``[n, 1 + k]``, the token at each place, of which those behind the first wrong
        draft do not count; ``drafts`` as they were returned."""
        drafted = 0 if drafts is None else int((drafts >= 0).sum())
        self.counters["drafted_tokens"] += drafted
        self.lengths.observe_step(len(sampled), drafted, seconds)
        if self._proposal is None:
            return
        given = 0 if drafts is None else (drafts >= 0).sum(1)
        # A draft that was not verified has a first token that can be compared with what was sampled.
        width = min(sampled.shape[1], LONGEST)
        guessed = self._proposal.tokens[:, :width]
        compared = np.maximum(given, guessed[:, 0] >= 0)
        equal = (sampled[:, :width] == guessed) & (np.arange(width) < compared[:, None])
        right = np.logical_and.accumulate(equal, axis=1).sum(1)
        self.lengths.observe_drafts(self._proposal.kind, right, (right < compared).astype(np.int64))

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
        if batch.size and self._lots % _SHARE == 0:
            self.history.extend(batch.text, batch.rows["count"], self._readers[: batch.size])

    def _index_pending(self) -> None:
        if not self._pending:
            return
        pending, self._pending, self._pending_rows = self._pending, [], 0
        self._lots = self._lots + 1 if self._skip >= _RESTING else 0
        if self._lots % _SHARE:
            return
        counts = np.concatenate([counts for _, counts, _ in pending])
        text = np.full((len(counts), max(part.shape[1] for part, _, _ in pending)), -1, np.int32)
        first = 0
        for part, _, _ in pending:
            text[first : first + len(part), : part.shape[1]] = part
            first += len(part)
        self.history.extend(text, counts, np.concatenate([readers for _, _, readers in pending]))


def _scope(prompt: npt.NDArray[np.int32]) -> int:
    """The number of a prompt."""
    return int.from_bytes(blake2b(prompt.tobytes(), digest_size=8).digest())
