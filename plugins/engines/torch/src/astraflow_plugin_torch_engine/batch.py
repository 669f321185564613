"""The running sequences: one record per row, and their sampled tokens, as arrays over the batch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from astraflow_core.errors import EngineLost, RunFailed
from astraflow_core.types import GenerateRequest, GenerateResult, Sampling
from astraflow_core.types.generation import RoutedExperts
from astraflow_plugin_torch_engine.sampling import stream_keys
from astraflow_plugin_torch_engine.speculation.history import CONTEXT

_ROW = np.dtype(
    [
        ("position", np.int64),  # of the pending token, which is also its column in the cache
        ("pending", np.int64),  # sampled, not yet decoded
        ("count", np.int64),  # tokens sampled
        ("limit", np.int64),  # most tokens to sample
        ("temperature", np.float32),
        ("top_p", np.float32),
        ("top_k", np.int64),
        ("min_p", np.float32),
        ("stream", np.uint64),  # of its random numbers
        ("adapter", np.int64),  # its number, 0 without one
        ("version", np.int32),  # that it keeps, -1: whatever is loaded
    ]
)
_NO_TOKEN, _ANY, _NEVER = -1, -2, -3
_TABLES = 256


Settled = tuple["asyncio.Future[Any]", Any]
"""A future and its outcome: a value, or an exception."""


@dataclass(slots=True)
class Job:
    """A request on its way, and the future of who waits for it. ``number``: how many arrived before it; ``adapter``: the number
    of the one that it has, ``version`` its version, -1: that of the weights; ``error``: why it ends, if not with a result; ``record``
    and ``stops``: see :meth:`DecodingBatch.read`."""

    request: GenerateRequest
    future: asyncio.Future[GenerateResult]
    number: int = 0
    adapter: int = 0
    version: int = -1
    error: Exception | None = None
    record: npt.NDArray[np.void] | None = None
    stops: npt.NDArray[np.int32] | None = None

    @property
    def prompt_key(self) -> bytes:
        """Equal for requests whose prompts the model reads alike."""
        seen = "".join(f"{image.start}:{image.digest}" for image in self.request.images)
        return self.request.prompt.tobytes() + f"{seen}:{self.adapter}".encode()

    @property
    def nothing(self) -> GenerateResult:
        """The result of a request that was aborted before its first token."""
        empty = np.zeros(0, dtype=np.int32)
        logprobs = np.zeros(0, dtype=np.float32)
        return GenerateResult(self.request.id, empty, logprobs, empty, "abort")


def settle(settled: list[Settled]) -> None:
    """Resolve futures, unless their callers no longer wait."""
    for future, value in settled:
        if future.done():
            continue
        if isinstance(value, BaseException):
            future.set_exception(value)
        else:
            future.set_result(value)


class Pending:
    """The futures that are not settled yet, in the event loop ``events``, and the outcomes ``settled`` that they do not have yet.
    ``lost``: why further requests fail."""

    def __init__(self, events: asyncio.AbstractEventLoop) -> None:
        self.settled: list[Settled] = []
        self.lost: EngineLost | None = None
        self._events = events
        self._futures: set[asyncio.Future[Any]] = set()

    def check(self) -> None:
        """Raise what ``lost`` is."""
        if self.lost is not None:
            raise self.lost

    def expect(self, future: asyncio.Future[Any]) -> None:
        """It will be settled; raises what ``lost`` is. To be called in the event loop."""
        self.check()
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)

    def hand_out(self) -> None:
        """Settle all futures of a step by one callback into the event loop."""
        if self.settled and not self._events.is_closed():
            self._events.call_soon_threadsafe(settle, self.settled)
        self.settled = []

    def lose(self, error: EngineLost) -> None:
        """After what is settled, all others end with ``error``, and so does every later request."""
        self.lost = error
        self.hand_out()
        if not self._events.is_closed():
            self._events.call_soon_threadsafe(
                lambda: settle([(future, error) for future in list(self._futures)])
            )


class DecodingBatch:
    """Rows 0 … ``size`` - 1 run; compact after every :meth:`remove`. ``seed``: of the random numbers of all requests."""

    def __init__(self, capacity: int, eos: tuple[int, ...], seed: int) -> None:
        self.size, self.capacity = 0, capacity
        self.jobs: list[Job] = []
        self.recorded = 0
        """Rows whose experts are recorded."""
        self._routed: list[RoutedExperts | None] = []  # of each row, room for all its tokens
        self._eos = eos
        self._seed = seed
        self._rows = np.zeros(capacity, dtype=_ROW)
        # The first CONTEXT columns have the last tokens of the prompt.
        self._tokens = np.zeros((capacity, CONTEXT + 16), dtype=np.int32)
        self._logprobs = np.zeros((capacity, 16), dtype=np.float32)
        self._versions = np.zeros((capacity, 16), dtype=np.int32)
        # The last id of every stop condition; those of several ids are compared in full only where it was sampled.
        self._last = np.full((capacity, 1), _NEVER, dtype=np.int32)
        self._stops: list[npt.NDArray[np.int32]] = []  # of each row, all ids of its conditions
        self._tables: dict[object, npt.NDArray[np.int32]] = {}

    @property
    def rows(self) -> npt.NDArray[np.void]:
        """The records of the running rows, a view ``[size]``."""
        return self._rows[: self.size]

    @property
    def text(self) -> npt.NDArray[np.int32]:
        """Of the running rows: the last ``CONTEXT`` tokens of the prompt, -1 for none, and what was sampled, a view ``[size,
        CONTEXT + …]``."""
        return self._tokens[: self.size]

    def read(self, job: Job) -> None:
        """Store the row record of a request, without what is known only when it begins, and its stop conditions. An error concerns
        this request alone."""
        r, s = job.request, job.request.sampling
        given = (len(r.prompt) - 1, 0, 0, s.max_tokens, s.temperature, s.top_p, s.top_k, s.min_p)
        job.record = np.array([(*given, 0, 0, -1)], _ROW)
        job.stops = self._stop_table(s)

    def add(self, jobs: Sequence[Job]) -> None:
        """Append rows of requests that were read; their first token is not sampled yet, so ``position`` is one before its own."""
        records = np.concatenate([job.record for job in jobs if job.record is not None])
        records["stream"] = stream_keys(self._seed, np.array([job.number for job in jobs]))
        records["adapter"] = [job.adapter for job in jobs]
        records["version"] = [job.version for job in jobs]
        stops = [job.stops for job in jobs if job.stops is not None]
        self._widen(
            max(job.request.sampling.max_tokens for job in jobs), max(len(each) for each in stops)
        )
        first, self.size = self.size, self.size + len(jobs)
        self.jobs.extend(jobs)
        self._routed.extend([None] * len(jobs))
        self._stops.extend(stops)
        self._rows[first : self.size] = records
        self._tokens[first : self.size, :CONTEXT] = _NO_TOKEN
        self._last[first : self.size] = _NEVER
        for row, (job, table) in enumerate(zip(jobs, stops, strict=True), first):
            end = job.request.prompt[-CONTEXT:]
            self._tokens[row, CONTEXT - len(end) : CONTEXT] = end
            self._last[row, : len(table)] = table[:, -1]

    def diverged(self, rows: npt.NDArray[np.int64], version: int) -> None:
        """Their logits are not finite, which is how they end; rows of another adapter continue."""
        for row in rows.tolist():
            job = self.jobs[row]
            own = version if job.version < 0 else job.version
            job.error = RunFailed(
                f"engine 'torch': the logits of version {own} are not finite; look for NaN in the published weights"
            )

    def assign(self, row: int, adapter: int, version: int) -> None:
        """Have row ``row`` continue with an adapter."""
        job = self.jobs[row]
        job.adapter, job.version = adapter, version
        self._rows[["adapter", "version"]][row] = adapter, version

    def record_prompts(
        self, first: int, routed: RoutedExperts, source: npt.NDArray[np.int64]
    ) -> None:
        """Take the experts of the prompts of rows ``first`` … ``size`` - 1: ``routed`` ``[m, T, layers, top_k]``, of
        which row ``first + i`` has ``source[i]``."""
        for row, number in enumerate(source.tolist(), first):
            request = self.jobs[row].request
            if request.routing:
                size = len(request.prompt)
                room = (size + request.sampling.max_tokens - 1, *routed.shape[2:])
                given: RoutedExperts = np.empty(room, routed.dtype)
                given[:size] = routed[number, :size]
                self._routed[row] = given
                self.recorded += 1

    def record_experts(self, routed: RoutedExperts) -> None:
        """Take the experts ``[size, layers, top_k]`` of the pending tokens, which have been decoded."""
        places = self._rows["position"].tolist()
        for row, given in enumerate(self._routed):
            if given is not None:
                given[places[row]] = routed[row]

    def record(
        self,
        which: npt.NDArray[np.int64],
        tokens: npt.NDArray[np.int64],
        logprobs: npt.NDArray[np.float32],
        version: int,
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Take the newly sampled tokens of rows ``which``, one each. ``version`` is that of rows that keep none.

        Returns the rows that end, in the order of ``which``, and for each whether by a stop condition.
        """
        count = self._rows["count"][which]
        self._tokens[which, CONTEXT + count] = tokens
        own = self._rows["version"][which]
        self._logprobs[which, count] = logprobs
        self._versions[which, count] = np.where(own < 0, version, own)
        self._rows["pending"][which] = tokens
        self._rows["position"][which] += 1
        self._rows["count"][which] = count = count + 1
        stopped = self._stopped(which, tokens, count)
        ended = np.flatnonzero(stopped | (count >= self._rows["limit"][which]))
        return which[ended], stopped[ended]

    def result(self, row: int, reason: Literal["stop", "length", "abort"]) -> GenerateResult:
        """What row ``row`` has sampled."""
        count = int(self._rows["count"][row])
        routed = self._routed[row]
        if routed is not None:
            read = int(self._rows["position"][row])
            routed = routed if read == len(routed) else routed[:read].copy()
        return GenerateResult(
            self.jobs[row].request.id,
            self._tokens[row, CONTEXT : CONTEXT + count].copy(),
            self._logprobs[row, :count].copy(),
            self._versions[row, :count].copy(),
            reason,
            routed,
        )

    def remove(
        self, ended: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Take rows out; the last rows move into the holes. Returns the moves (from, to)."""
        left = self.size - len(ended)
        holes = ended[ended < left]
        tail = np.arange(left, self.size)
        movers = tail[~np.isin(tail, ended)]
        for array in (self._rows, self._tokens, self._logprobs, self._versions, self._last):
            array[holes] = array[movers]
        if self.recorded:
            self.recorded -= sum(self._routed[row] is not None for row in ended.tolist())
        for source, target in zip(movers.tolist(), holes.tolist(), strict=True):
            self.jobs[target] = self.jobs[source]
            self._routed[target] = self._routed[source]
            self._stops[target] = self._stops[source]
        del self.jobs[left:], self._routed[left:], self._stops[left:]
        self.size = left
        most = max(map(len, self._stops), default=1)
        if most < self._last.shape[1]:
            self._last = self._last[:, :most].copy()
        return movers, holes

    def _stopped(
        self,
        which: npt.NDArray[np.int64],
        tokens: npt.NDArray[np.int64],
        count: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.bool_]:
        stopped = np.asarray((self._last[which] == tokens[:, None]).any(1))
        for place in np.flatnonzero(stopped).tolist():
            row, end = int(which[place]), CONTEXT + int(count[place])
            table = self._stops[row]
            width = table.shape[1]
            if width > 1:
                text = self._tokens[row, max(CONTEXT, end - width) : end]
                tail = np.full(width, _NO_TOKEN, np.int32)
                tail[width - len(text) :] = text
                stopped[place] = ((table == tail) | (table == _ANY)).all(1).any()
        return stopped

    def _stop_table(self, sampling: Sampling) -> npt.NDArray[np.int32]:
        """The stop conditions of a request: int32 ``[number, longest]``."""
        key = (sampling.stop_token_ids, sampling.stop_sequences, sampling.ignore_eos)
        if key not in self._tables:
            single = sampling.stop_token_ids + (() if sampling.ignore_eos else self._eos)
            stops = [(token,) for token in single] + [s for s in sampling.stop_sequences if s]
            longest = max((len(stop) for stop in stops), default=1)
            table = np.full((max(1, len(stops)), longest), _NEVER, dtype=np.int32)
            for line, stop in zip(table, stops, strict=False):
                line[:] = [_ANY] * (longest - len(stop)) + list(stop)
            if len(self._tables) >= _TABLES:
                self._tables.clear()
            self._tables[key] = table
        return self._tables[key]

    def _widen(self, tokens: int, stops: int) -> None:
        """Room for ``tokens`` sampled tokens and ``stops`` stop conditions per row."""
        had = self._logprobs.shape[1]
        if tokens > had:
            grow = ((0, 0), (0, max(tokens - had, had)))
            self._tokens = np.pad(self._tokens, grow)
            self._logprobs = np.pad(self._logprobs, grow)
            self._versions = np.pad(self._versions, grow)
        if stops > self._last.shape[1]:
            grow = ((0, 0), (0, stops - self._last.shape[1]))
            self._last = np.pad(self._last, grow, constant_values=_NEVER)
