"""The scheduler of the stand-in: what SGLang's does with requests, pauses, aborts, updates and its cache, one pass
after another, in the order in which messages come. ``sglang_behaviours`` says where the sources show each of it."""

from __future__ import annotations

import asyncio
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file
from sglang_pictures import PicturedSequence, decoder_of

from astraflow_core.types import Sampling
from astraflow_testing.tiny_decoder import DecodedSequence as Decoded
from astraflow_testing.tiny_decoder import Drawn

ABORTED = {
    "type": "abort",
    "message": "aborted while it ran",
    "status_code": None,
    "err_type": None,
}
QUEUED = {"type": "abort", "message": "aborted in the queue"}


@dataclass(eq=False)
class Req:
    """A request that reached the scheduler. ``swaps``: the version before each swap, and the tokens at that time. The log-probs
    of the id ``asked`` are wanted at each place of the prompt."""

    rid: str
    decoded: Decoded
    sampling: Sampling
    stops: set[int]
    scored: bool
    asked: int | None = None
    entries: list[list[Any]] = field(default_factory=list)
    inputs: list[list[Any]] = field(default_factory=list)
    of_asked: list[list[list[Any]] | None] = field(default_factory=list)
    swaps: list[tuple[str, int]] = field(default_factory=list)
    to_finish: dict[str, Any] | None = None
    finish: dict[str, Any] | None = None

    def spans(self, version: str) -> list[dict[str, Any]]:
        """Which version sampled which tokens, as far as the scheduler knows."""
        spans: list[dict[str, Any]] = []
        for name, end in [*self.swaps, (version, len(self.entries))]:
            start = spans[-1]["end"] if spans else 0
            if spans and (end <= start or name == spans[-1]["version"]):
                spans[-1]["end"] = max(end, start)
            else:
                spans.append({"version": name, "start": start, "end": end})
        return spans


@dataclass(frozen=True)
class Output:
    """What is sent to the tokenizer side: tokens so far and, with the last of them only, spans of versions."""

    rid: str
    entries: list[list[Any]]
    inputs: list[list[Any]]
    of_asked: list[list[list[Any]] | None]
    finish: dict[str, Any] | None
    spans: list[dict[str, Any]] | None


class Refused(Exception):
    """An answer with success false."""


class Scheduler:
    """``send`` takes outputs; ``overlap`` launches a batch before the result of the one before is processed;
    ``radix`` keeps keys and values for others. ``frozen`` makes it hang, ``held`` makes it
    read no message either; ``stale_cache``: whether tokens were computed while the cache held entries of other
    weights."""

    def __init__(
        self, model: Path, send: Callable[[Output], None], overlap: bool, radix: bool
    ) -> None:
        self.decoder = decoder_of(model)
        self.eos = self.decoder.config["eos_token_id"]
        self.weights = load_file(model / "model.safetensors")
        self.version = "default"
        self.overlap, self.radix = overlap, radix
        self.paused = False
        self.frozen = False
        self.held = False
        self.delay_s = 0.0005
        self.stale_cache = False
        self.session = False
        self.running: list[Req] = []
        self.waiting: list[Req] = []
        self._last: list[Req] = []
        self._results: deque[tuple[list[Req], list[Drawn]]] = deque()
        self._inbox: deque[tuple[Callable[[], Any], asyncio.Future[Any] | None]] = deque()
        self._flush: tuple[float, asyncio.Future[Any]] | None = None
        self._cached: set[str] = set()
        self._send = send
        self._wake = asyncio.Event()

    # --- messages ------------------------------------------------------------------------------

    def tell(self, message: Callable[[], Any]) -> None:
        """Send a message without a reply: the sender does not know when it is read."""
        self._inbox.append((message, None))
        self._wake.set()

    async def ask(self, message: Callable[[], Any]) -> Any:
        """A message with an answer; :class:`Refused` is one of them."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._inbox.append((message, answer))
        self._wake.set()
        return await answer

    async def run(self) -> None:
        """Pass after pass, for ever."""
        while True:
            while self.held:
                await asyncio.sleep(0.001)
            self._ingest()
            if not self.paused and not self.frozen:
                self._step()
            busy = self.running or self.waiting or self._results or self._last
            if (busy and not self.paused and not self.frozen) or self._flush:
                await asyncio.sleep(self.delay_s)
            else:
                await self._wake.wait()
            self._wake.clear()

    def _ingest(self) -> None:
        while self._inbox:
            message, answer = self._inbox.popleft()
            try:
                result = message()
            except Refused as error:
                if answer is not None and not answer.done():
                    answer.set_exception(error)
                continue
            if answer is not None and not answer.done():
                answer.set_result(result)
        self._check_flush()

    # --- a pass --------------------------------------------------------------------------------

    def _step(self) -> None:
        self.running = [req for req in self.running if req.finish is None] + self.waiting
        self.waiting = []
        batch = list(self.running)
        if batch:
            drawn = [self._forward(req) for req in batch]
            self._results.append((batch, drawn))
        if (self._last if self.overlap else batch) and self._results:
            self._process(*self._results.popleft())
        self._last = batch

    def _forward(self, req: Req) -> Drawn:
        if self.radix:
            self.stale_cache |= bool(self._cached - {self.version})
            self._cached.add(self.version)
        if req.scored and not req.inputs:
            scores = [None, *req.decoded.scores()]
            given = zip(scores, req.decoded.tokens, strict=True)
            req.inputs = [[score, token, None] for score, token in given]
            if req.asked is not None:
                assert isinstance(req.decoded, PicturedSequence)
                scores = [float(row[req.asked]) for row in req.decoded.logprobs()[:-1]]
                req.of_asked = [None, *([[score, req.asked, None]] for score in scores)]
        return req.decoded.next(req.sampling)

    def _process(self, batch: Sequence[Req], drawn: Sequence[Drawn]) -> None:
        for req, one in zip(batch, drawn, strict=True):
            if req.finish is not None:
                continue
            logprob = one.raw if req.sampling.temperature == 0 else one.tempered
            req.entries.append([float(logprob), one.token, None])
            if req.to_finish is not None:
                req.finish = req.to_finish
            elif one.token in req.stops:
                req.finish = {"type": "stop", "matched": one.token}
            elif len(req.entries) >= req.sampling.max_tokens:
                req.finish = {"type": "length", "length": req.sampling.max_tokens}
            self._output(req, req.finish)

    def _output(self, req: Req, finish: dict[str, Any] | None) -> None:
        spans = None if finish is None else req.spans(self.version)
        self._send(Output(req.rid, list(req.entries), req.inputs, req.of_asked, finish, spans))

    def _live(self) -> Iterable[Req]:
        return dict.fromkeys([*self.running, *self._last, *self.waiting])

    # --- what messages do ----------------------------------------------------------------------

    def add(self, req: Req) -> None:
        """It begins with the next pass."""
        self.waiting.append(req)

    def abort(self, rid: str, everything: bool) -> None:
        """One that has not begun is dropped at once; one that runs ends after its next token."""
        for req in [r for r in self.waiting if everything or r.rid.startswith(rid)]:
            self.waiting.remove(req)
            self._output(req, QUEUED)
        for req in self._live():
            if req.finish is None and (everything or req.rid.startswith(rid)):
                req.to_finish = ABORTED

    def fail(self, rid: str, status: int, message: str) -> None:
        """It runs out of memory, or the like."""
        for req in self._live():
            if req.rid == rid:
                req.to_finish = {"type": "abort", "message": message, "status_code": status}

    def pause(self, mode: str) -> None:
        """``in_place`` leaves everything, a result that waits to be processed too; ``retract`` puts what runs back
        into the queue, without keys and values."""
        self.paused = True
        if mode == "in_place":
            return
        if self.overlap and self._last:
            self._process(*self._results.popleft())
        retracted = [req for req in self._live() if req.finish is None and req not in self.waiting]
        for req in retracted:
            req.decoded.forget()
        self.running, self._last = [], []
        self.waiting += retracted

    def go_on(self) -> None:
        """Undo :meth:`pause`."""
        self.paused = False

    def state(self) -> dict[str, Any]:
        """Answered by the scheduler itself, so after all that was sent to it before."""
        return {"paused": self.paused}

    def _idle(self, ignore_waiting: bool) -> bool:
        return not (
            self.running
            or self._last
            or (self.overlap and self._results)
            or (self.waiting and not ignore_waiting)
        )

    def flush(self) -> bool:
        """Refused while anything holds keys and values, that is, also by requests that are frozen in place."""
        if not self._idle(ignore_waiting=self.paused):
            return False
        self._cached.clear()
        return True

    async def flush_within(self, timeout_s: float) -> bool:
        """With a timeout it waits until nothing runs and nothing waits, whether it is paused or not."""
        loop = asyncio.get_running_loop()
        if timeout_s <= 0 or await self.ask(lambda: self._idle(False)):
            return bool(await self.ask(self.flush))
        if self._flush is not None:
            return False
        self._flush = loop.time() + timeout_s, loop.create_future()
        self._wake.set()
        return bool(await self._flush[1])

    def _check_flush(self) -> None:
        if self._flush is None:
            return
        until, answer = self._flush
        if self._idle(False):
            answer.set_result(self.flush())
            self._flush = None
        elif asyncio.get_running_loop().time() > until:
            answer.set_result(False)
            self._flush = None

    # --- weights -------------------------------------------------------------------------------

    def load(self, tensors: dict[str, np.ndarray[Any, Any]]) -> None:
        """Some of the weights, or all."""
        self.weights = {**self.weights, **tensors}
        with tempfile.TemporaryDirectory() as folder:
            save_file(self.weights, Path(folder) / "model.safetensors")
            self.decoder.load(Path(folder) / "model.safetensors")

    def updated(self, version: str | None, flush: bool) -> None:
        """The version is changed first, then the cache is flushed; only then may the update be refused."""
        if version is not None and version != self.version:
            for req in self._live():
                if req.entries:
                    req.swaps.append((self.version, len(req.entries)))
            self.version = version
        if flush and not self.flush():
            raise Refused("the weights were updated, the cache was not flushed")

    def begin_session(self) -> None:
        if self.session:
            raise Refused("a session is open")
        self.session = True

    def end_session(self) -> None:
        if not self.session:
            raise Refused("no session is open")
        self.session = False

    def check_session(self) -> None:
        """Tensors are taken in a session only."""
        if not self.session:
            raise Refused("an update must run in a session")
