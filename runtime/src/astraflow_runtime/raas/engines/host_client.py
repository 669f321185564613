"""The client of one engine host in its RaaS. All requests made within one tick of the event loop
are sent as one message.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import zmq
import zmq.asyncio

from astraflow_core.errors import DeadlineExceeded, WireError
from astraflow_core.protocols.engine import PauseMode
from astraflow_core.types import (
    Delivery,
    GenerateRequest,
    GenerateResult,
    Images,
    Rendezvous,
    WeightSource,
)
from astraflow_engine_host import protocol
from astraflow_engine_host.protocol import HostGone
from astraflow_runtime.raas.engines.deadlines import ended
from astraflow_wire.http.drafts import PastSequence
from astraflow_wire.images.table import encode_joined

Call = Callable[[int], protocol.ToHost]


class HostClient:
    """Requests and calls to a connected host; :meth:`lose` ends all of them. ``host`` names the
    host in errors. :meth:`take` handles the frames that the host sends. ``finished`` counts
    results; ``lost`` is why the host is gone, once it is. ``stopped_s()``: seconds for which the
    host was stopped so far, which no deadline counts.
    """

    def __init__(
        self,
        host: str,
        socket: zmq.asyncio.Socket,
        peer: bytes,
        stopped_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.host = host
        self.stopped_s = stopped_s
        self._socket = socket
        self._peer = peer
        self._outgoing: list[GenerateRequest] = []
        self._aborts: list[str] = []
        self._results: dict[str, asyncio.Future[GenerateResult]] = {}
        self._calls: dict[int, asyncio.Future[tuple[dict[str, float], list[bytes]]]] = {}
        self._numbers = itertools.count()
        self._flush_planned = False
        self.lost: str | None = None
        self.finished = 0

    @property
    def pending(self) -> int:
        """The number of requests in flight."""
        return len(self._results)

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """``Engine.generate``; a request whose caller is cancelled is aborted in the engine. :class:`ValueError` if it names an
        adapter: an engine in a host has the versions of its policy only."""
        self._check()
        if request.adapter:
            raise ValueError(f"request {request.id!r} names an adapter, and engine hosts load none")
        future: asyncio.Future[GenerateResult] = asyncio.get_running_loop().create_future()
        self._results[request.id] = future
        self._outgoing.append(request)
        self._plan_flush()
        try:
            return await future
        except asyncio.CancelledError:
            if self._results.pop(request.id, None) is not None and self.lost is None:
                self._aborts.append(request.id)
                self._plan_flush()
            raise

    async def score(
        self, tokens: npt.NDArray[np.int32], deadline_s: float, images: Images = ()
    ) -> npt.NDArray[np.float32]:
        """``Engine.score``, or ``ReadsImages.score_images``."""
        table, files = encode_joined([(images, len(tokens))])

        def score(call: int) -> protocol.Frames:
            read = tokens.astype(np.int32, copy=False)
            return [*protocol.frames(protocol.Score(call, table), read), *files]

        _, buffers = await self._sent(score, deadline_s, "score")
        return protocol.array(buffers, 0, np.float32, len(tokens))

    async def pause(self, mode: PauseMode, deadline_s: float) -> None:
        """``Engine.pause``."""
        await self._call(lambda call: protocol.Pause(call, mode), deadline_s, "pause")

    async def resume(self, deadline_s: float) -> None:
        """``Engine.resume``."""
        await self._call(protocol.Resume, deadline_s, "resume")

    async def load_weights(self, source: WeightSource, deadline_s: float) -> None:
        """``Engine.load_weights``."""

        def load(call: int) -> protocol.ToHost:
            return protocol.LoadWeights(
                call,
                source.policy,
                source.version,
                str(source.path),
                source.digest,
                source.bytes_received,
                source.seconds,
                source.kind,
                source.base,
            )

        await self._call(load, deadline_s, f"load version {source.version}")

    async def join(self, rendezvous: Rendezvous, deadline_s: float) -> None:
        """``DirectEngine.join``."""
        await self._call(lambda call: protocol.Join(call, rendezvous), deadline_s, "join")

    async def receive(self, delivery: Delivery, deadline_s: float) -> None:
        """``DirectEngine.receive``."""
        await self._call(
            lambda call: protocol.Receive(call, delivery.version, delivery.buckets),
            deadline_s,
            f"receive version {delivery.version}",
        )

    async def learn_drafts(self, sequences: Sequence[PastSequence], deadline_s: float) -> bool:
        """``TakesDrafts.learn_drafts``."""
        lengths = [len(each.tokens) for each in sequences]
        tokens = np.concatenate([each.tokens for each in sequences], dtype=np.int32)
        sampled = np.concatenate([each.sampled for each in sequences]).view(np.uint8)
        values, _ = await self._sent(
            lambda call: protocol.frames(protocol.LearnDrafts(call, lengths), tokens, sampled),
            deadline_s,
            "learn drafts",
        )
        return bool(values.get("useful"))

    async def sleep(self, level: int, deadline_s: float) -> None:
        """``Engine.sleep``."""
        await self._call(lambda call: protocol.Sleep(call, level), deadline_s, "sleep")

    async def wake(self, deadline_s: float) -> None:
        """``Engine.wake``."""
        await self._call(protocol.Wake, deadline_s, "wake")

    async def health(self, deadline_s: float) -> dict[str, float]:
        """``Engine.health``."""
        values, _ = await self._call(protocol.Health, deadline_s, "health")
        return values

    async def ping(self, deadline_s: float) -> dict[str, float]:
        """Check that the event loop of the host responds; returns its ``cpu_s``."""
        values, _ = await self._call(protocol.Ping, deadline_s, "ping")
        return values

    async def close(self, deadline_s: float) -> None:
        """``Engine.close``; the host exits afterwards."""
        await self._call(protocol.Close, deadline_s, "close")

    def take(self, message: protocol.FromHost, buffers: list[bytes]) -> None:
        """Handle a message of the host. Raises :class:`WireError` if it is malformed."""
        match message:
            case protocol.Results() | protocol.RoutedResults():
                self._take_results(message, buffers)
            case protocol.Reply(call=call, values=values):
                if (answer := self._calls.pop(call, None)) is not None and not answer.done():
                    answer.set_result((values, buffers))
            case protocol.Failed(call=call, failure=failure):
                if (answer := self._calls.pop(call, None)) is not None and not answer.done():
                    answer.set_exception(protocol.as_exception(failure))
            case _:
                raise WireError(f"{type(message).__name__} after the start of a host")

    def _take_results(self, message: protocol.Results, buffers: list[bytes]) -> None:
        results = protocol.decode_results(message, buffers)
        self.finished += len(results)
        for result in results:
            future = self._results.pop(result.id, None)
            if future is not None and not future.done():
                future.set_result(result)
        for identifier, failure in zip(message.failed, message.failures, strict=True):
            future = self._results.pop(identifier, None)
            if future is not None and not future.done():
                future.set_exception(protocol.as_exception(failure))

    def lose(self, reason: str) -> None:
        """The host is gone: fail all pending and future calls."""
        if self.lost is not None:
            return
        self.lost = reason
        waiting: list[asyncio.Future[Any]] = [*self._results.values(), *self._calls.values()]
        self._results.clear()
        self._calls.clear()
        self._outgoing.clear()
        for future in waiting:
            if not future.done():
                future.set_exception(HostGone(f"{self.host} {reason}"))

    def _check(self) -> None:
        if self.lost is not None:
            raise HostGone(f"{self.host} {self.lost}")

    async def _call(
        self, message: Call, deadline_s: float, what: str
    ) -> tuple[dict[str, float], list[bytes]]:
        return await self._sent(lambda call: protocol.frames(message(call)), deadline_s, what)

    async def _sent(
        self, frames: Callable[[int], protocol.Frames], deadline_s: float, what: str
    ) -> tuple[dict[str, float], list[bytes]]:
        self._check()
        call = next(self._numbers)
        answer: asyncio.Future[tuple[dict[str, float], list[bytes]]] = (
            asyncio.get_running_loop().create_future()
        )
        self._calls[call] = answer
        self._send(frames(call))
        try:
            if not await ended([answer], deadline_s, self.stopped_s):
                raise DeadlineExceeded(self.host, what, deadline_s)
            return answer.result()
        finally:
            self._calls.pop(call, None)
            if not answer.cancel() and not answer.cancelled():
                answer.exception()  # seen, also by a caller that was cancelled just before

    def _plan_flush(self) -> None:
        if not self._flush_planned:
            self._flush_planned = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_planned = False
        if self.lost is not None:
            return
        requests = [request for request in self._outgoing if request.id in self._results]
        never_sent = {request.id for request in self._outgoing}
        aborts = [identifier for identifier in self._aborts if identifier not in never_sent]
        self._outgoing = []
        self._aborts = []
        if requests:
            self._send(protocol.encode_requests(requests))
        if aborts:
            self._send(protocol.frames(protocol.Abort(aborts)))

    def _send(self, frames: protocol.Frames) -> None:
        self._socket.send_multipart([self._peer, *frames])
