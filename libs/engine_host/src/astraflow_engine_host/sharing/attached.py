"""An engine that is a part of a shared one: its requests and its adapter, alongside those of other runs."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import zmq
import zmq.asyncio

from astraflow_core.errors import (
    DeadlineExceeded,
    EngineLost,
    RunFailed,
    UserError,
    WeightsError,
    WireError,
)
from astraflow_core.protocols.engine import PauseMode
from astraflow_core.types import (
    GenerateRequest,
    GenerateResult,
    Images,
    LogprobSemantics,
    WeightSource,
)
from astraflow_engine_host import protocol
from astraflow_engine_host.protocol import Frames
from astraflow_engine_host.sharing import messages
from astraflow_engine_host.sharing.messages import (
    MOST_ADAPTER_BYTES,
    SHARED_ENGINES,
    UNKNOWN_CALL,
    Attachment,
    ended_early,
)
from astraflow_engine_host.sharing.seats import user_of

log = logging.getLogger("astraflow.engine_host")
BEAT_S = 2.0
GREETING_S = 600.0
"""A shared engine that was restarted loads its model again."""

SILENT_S = 60.0
"""A shared engine that answers nothing for so long is lost."""


def attachment_of(policy: str, environment: Mapping[str, str] = os.environ) -> Attachment | None:
    """The shared engine of a policy; ``None`` if it has its own."""
    if not (told := environment.get(SHARED_ENGINES)):
        return None
    return msgspec.convert(json.loads(told), dict[str, Attachment]).get(policy)


class AttachedEngine:
    """See :class:`astraflow_core.protocols.engine.Engine`. Every version is an adapter, and a request keeps the one with which it
    began. :meth:`pause` stops the requests of this engine only: with ``keep`` running ones continue, since no version is swapped
    under them."""

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment
        self._context: zmq.asyncio.Context | None = None
        self._ready: protocol.Ready | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._results: dict[str, asyncio.Future[GenerateResult]] = {}
        self._calls: dict[int, asyncio.Future[tuple[dict[str, float], list[bytes]]]] = {}
        self._numbers = itertools.count()
        self._outgoing: list[GenerateRequest] = []
        self._open = asyncio.Event()
        self._heard = 0.0
        self._lost: Exception | None = None

    async def start(self, model: Path) -> None:
        """Wait for the shared engine, which has the model."""
        context = self._context = zmq.asyncio.Context()
        socket = self._socket = context.socket(zmq.DEALER)
        for option in (zmq.SNDHWM, zmq.RCVHWM):
            socket.setsockopt(option, 0)
        socket.setsockopt(zmq.LINGER, 500)
        token = self._attachment.token
        socket.setsockopt_string(zmq.PLAIN_USERNAME, user_of(token))
        socket.setsockopt_string(zmq.PLAIN_PASSWORD, token)
        monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
        socket.connect(self._attachment.address)
        socket.send_multipart(messages.encode(messages.Attach(token)))
        greeting = asyncio.ensure_future(socket.recv_multipart())
        refused = asyncio.ensure_future(monitor.recv_multipart())
        try:
            await asyncio.wait(
                {greeting, refused}, timeout=GREETING_S, return_when=asyncio.FIRST_COMPLETED
            )
            if refused.done():
                raise UserError("the token is not one of this shared engine, or its RaaS has ended")
            if not greeting.done():
                raise DeadlineExceeded("a shared engine", "its greeting", GREETING_S)
            header, *_ = greeting.result()
        finally:
            greeting.cancel()
            refused.cancel()
            socket.disable_monitor()
            monitor.close(0)
        match protocol.decode_from_host(header):
            case protocol.Ready() as ready:
                self._ready = ready
                log.info("a shared engine of this host has the model and serves this adapter")
            case protocol.StartFailed(failure=failure):
                raise protocol.as_exception(failure)
            case other:
                raise RunFailed(f"a shared engine greets with {type(other).__name__}")
        self._heard = time.monotonic()
        self._tasks = [asyncio.create_task(self._receive()), asyncio.create_task(self._beat())]
        self._open.set()

    @property
    def logprob_semantics(self) -> LogprobSemantics:
        """The semantics of the shared engine."""
        return LogprobSemantics(self._greeting.temperature, self._greeting.truncation)

    @property
    def context_length(self) -> int:
        """That of the shared engine."""
        return self._greeting.context_length

    @property
    def _greeting(self) -> protocol.Ready:
        if self._ready is None:
            raise RuntimeError("the engine was not started")
        return self._ready

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """Sample with the adapter that is loaded when the request begins; if the caller is cancelled, so is the request."""
        if request.adapter:
            raise ValueError(
                f"request {request.id!r} names an adapter, and an attached engine has one"
            )
        while not self._open.is_set():
            await self._open.wait()
        self._check()
        if request.id in self._results:
            raise ValueError(f"request {request.id!r} is here already")
        future: asyncio.Future[GenerateResult] = asyncio.get_running_loop().create_future()
        self._results[request.id] = future
        self._outgoing.append(request)
        if len(self._outgoing) == 1:
            asyncio.get_running_loop().call_soon(self._flush)
        try:
            return await future
        except asyncio.CancelledError:
            if self._lost is None:
                self._flush()
                self._send(messages.encode(protocol.Abort([request.id])))
            raise
        finally:
            self._results.pop(request.id, None)

    async def score(self, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        """Score with the adapter that is loaded."""
        whole = np.ascontiguousarray(tokens, np.int32)
        call = next(self._numbers)
        _, buffers = await self._ask(call, protocol.frames(protocol.Score(call), whole))
        return protocol.array(buffers, 0, np.float32, len(tokens))

    async def score_images(
        self, tokens: npt.NDArray[np.int32], images: Images
    ) -> npt.NDArray[np.float32]:
        """Not supported: with named adapters, engines do not score images."""
        raise ValueError("a shared engine scores no images")

    async def pause(self, mode: PauseMode) -> None:
        """Pause the requests of this engine; see above."""
        self._open.clear()
        self._flush()
        running = list(self._results.values())
        if mode == "abort" and running:
            self._send(messages.encode(protocol.Abort(list(self._results))))
        if mode != "keep" and running:
            await asyncio.wait(running)
        self._check()

    async def resume(self) -> None:
        """Take requests again."""
        self._open.set()

    async def abort(self, ids: list[str]) -> None:
        """End the named requests."""
        self._check()
        self._flush()
        self._send(messages.encode(protocol.Abort([each for each in ids if each in self._results])))

    async def load_weights(self, source: WeightSource) -> None:
        """Send an adapter, whose base has to be the model of the shared engine."""
        if source.kind != "adapter":
            raise WeightsError(
                f"version {source.version} is a whole model, and the engine is shared by adapters of one base; let the hosts of "
                "the pool share none (share_engines)"
            )
        size = source.path.stat().st_size
        if size > MOST_ADAPTER_BYTES:
            raise WeightsError(
                f"version {source.version} has {size} bytes; a shared engine takes adapters of at most {MOST_ADAPTER_BYTES}"
            )
        data = await asyncio.to_thread(source.path.read_bytes)
        call = next(self._numbers)
        message = messages.LoadAdapter(call, source.version, source.digest, source.base)
        await self._ask(call, messages.encode(message, data))

    async def sleep(self, level: int) -> None:
        """Not possible: other runs use the devices."""
        raise UserError("a shared engine does not sleep")

    async def wake(self) -> None:
        """Not possible: other runs use the devices."""
        raise UserError("a shared engine does not sleep")

    async def health(self) -> dict[str, float]:
        """Figures of this engine's own requests; ``decode_seconds`` are those of all."""
        call = next(self._numbers)
        values, _ = await self._ask(call, messages.encode(protocol.Health(call)))
        return values

    async def learn_drafts(
        self,
        tokens: npt.NDArray[np.int32],
        sampled: npt.NDArray[np.bool_],
        lengths: Sequence[int],
    ) -> bool:
        """Does nothing: the samples of a run are not given to an engine that other runs share."""
        return False

    async def close(self) -> None:
        """End all requests, and give the adapter's place back."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._context is not None:
            if self._lost is None:
                self._send(messages.encode(messages.Detach()))
            for request, future in self._results.items():
                _set(future, ended_early(request))
            self._lose(RuntimeError("the engine was closed"), told=False)
            self._socket.close()
            self._context.term()
            self._context = None

    # -- within ------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._lost is not None:
            raise self._lost

    def _flush(self) -> None:
        requests = [each for each in self._outgoing if each.id in self._results]
        self._outgoing = []
        if requests and self._lost is None:
            self._send(protocol.encode_requests(requests))

    def _send(self, frames: Frames) -> None:
        self._socket.send_multipart(frames)

    async def _ask(self, call: int, frames: Frames) -> tuple[dict[str, float], list[bytes]]:
        self._check()
        answer: asyncio.Future[tuple[dict[str, float], list[bytes]]] = (
            asyncio.get_running_loop().create_future()
        )
        self._calls[call] = answer
        self._send(frames)
        try:
            return await answer
        finally:
            self._calls.pop(call, None)

    async def _receive(self) -> None:
        while True:
            header, *buffers = await self._socket.recv_multipart()
            self._heard = time.monotonic()
            try:
                self._take(protocol.decode_from_host(header), buffers)
            except WireError as error:
                self._lose(EngineLost(f"the shared engine: {error}"))

    def _take(self, message: protocol.FromHost, buffers: list[bytes]) -> None:
        match message:
            case protocol.Results() | protocol.RoutedResults():
                for result in protocol.decode_results(message, buffers):
                    _set(self._results.get(result.id), result)
                for request, failure in zip(message.failed, message.failures, strict=True):
                    _set(self._results.get(request), protocol.as_exception(failure))
            case protocol.Reply(call=call, values=values):
                _set(self._calls.get(call), (values, buffers))
            case protocol.Failed(call=call, failure=failure):
                if call == UNKNOWN_CALL:
                    self._lose(EngineLost(f"the shared engine: {failure.message}"))
                else:
                    _set(self._calls.get(call), protocol.as_exception(failure))
            case _:
                raise WireError(f"{type(message).__name__} after the start")

    async def _beat(self) -> None:
        """Notice a shared engine that ended or hangs."""
        while self._lost is None:
            self._send(messages.encode(protocol.Ping(next(self._numbers))))
            await asyncio.sleep(BEAT_S)
            if (silent := time.monotonic() - self._heard) > SILENT_S:
                self._lose(EngineLost(f"the shared engine was silent for {silent:.0f} s"))

    def _lose(self, error: Exception, told: bool = True) -> None:
        if self._lost is not None:
            return
        self._lost = error
        if told:
            log.error("%s", error)
        self._open.set()
        waiting: list[asyncio.Future[Any]] = [*self._results.values(), *self._calls.values()]
        for future in waiting:
            _set(future, error)


def _set(future: asyncio.Future[Any] | None, outcome: Any) -> None:
    """Give a caller that still waits its result, or an exception."""
    if future is None or future.done():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
