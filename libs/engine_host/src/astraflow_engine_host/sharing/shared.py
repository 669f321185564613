"""The requests and adapters of several runs in one engine.

Tenants take turns, and so do the runs of a tenant: the next place goes to the one that waits and has the fewest requests in the
engine.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from astraflow_core.errors import EngineLost, UserError, WeightsError, WireError, WrongVersion
from astraflow_core.protocols.engine import Engine, ServesAdapters
from astraflow_core.types import GenerateRequest, GenerateResult, WeightSource
from astraflow_engine_host import protocol
from astraflow_engine_host.failures import as_failure
from astraflow_engine_host.protocol import Frames
from astraflow_engine_host.sharing import messages
from astraflow_engine_host.sharing.adapter_file import check_adapter
from astraflow_engine_host.sharing.messages import (
    MOST_ADAPTER_BYTES,
    UNKNOWN_CALL,
    decode_to_shared,
    ended_early,
)
from astraflow_engine_host.sharing.seats import LiveTokens, SparseLog

log = logging.getLogger("astraflow.shared_engine")
SILENT_S = 20.0
"""An attached engine that says nothing for so long is gone."""

MOST_WAITING = 1 << 12
"""Requests of an attachment that may wait."""

MOST_LOADING = 4 << 30
"""Bytes of adapters that are being loaded, of all attachments."""

_CALLS_AT_ONCE = 64

Send = Callable[[bytes, Frames], Any]


@dataclass(eq=False)
class WaitingScore:
    """A call that waits for its turn; ``turn`` is set when it may run."""

    id: str
    turn: asyncio.Future[None]


@dataclass(eq=False)
class AttachedRun:
    """One attached engine of ``run``, ``TENANT/NAME``. ``name``: of its adapter and of its requests, within the engine; ``known``:
    requests that wait or run; ``scoring``: those of ``running`` that are calls; ``loading``: bytes of an adapter that is being loaded."""

    token: str = field(repr=False)
    run: str
    name: str
    heard: float
    version: int | None = None
    file: Path | None = None
    waiting: deque[GenerateRequest | WaitingScore] = field(default_factory=deque)
    running: set[str] = field(default_factory=set)
    scoring: set[str] = field(default_factory=set)
    known: set[str] = field(default_factory=set)
    counters: dict[str, float] = field(
        default_factory=lambda: {"tokens_generated": 0.0, "prompt_tokens": 0.0}
    )
    finished: list[GenerateResult] = field(default_factory=list)
    failed: dict[str, protocol.Failure] = field(default_factory=dict)
    calls: int = 0
    loading: int = 0
    adapter: asyncio.Lock = field(default_factory=asyncio.Lock)


class SharedEngine:
    """Answers what :meth:`take` is given; ``send`` sends frames to a peer. ``engine`` serves adapters and has started; ``folder`` is
    private; ``places``: requests and calls of ``score`` that may be in the engine at once. ``tokens``: those that may attach."""

    def __init__(
        self, engine: Engine, tokens: LiveTokens, folder: Path, places: int, send: Send
    ) -> None:
        self._engine, self._tokens, self._folder = engine, tokens, folder
        self._places, self._send = places, send
        self._adapters = cast(ServesAdapters, engine)
        self._peers: dict[bytes, AttachedRun] = {}
        self._attached = self._scores = 0
        self._work: set[asyncio.Task[None]] = set()
        self._flushing: set[bytes] = set()
        self._refusals = SparseLog()
        self._loading = 0
        self.lost = asyncio.Event()

    def take(self, peer: bytes, header: bytes, buffers: list[bytes]) -> None:
        """A message of a peer; one that is malformed ends its attachment."""
        try:
            message = decode_to_shared(header)
            if isinstance(message, messages.Attach):
                self._attach(peer, message)
                return
            if (attached := self._peers.get(peer)) is None:
                raise WireError("attach first: this engine does not know the sender")
            attached.heard = time.monotonic()
            self._dispatch(peer, attached, message, buffers)
        except WireError as error:
            self._log_refusal(error)
            self._end(peer, error)

    def admit_only(self, tokens: Mapping[str, str]) -> None:
        """These are valid from now on (token → run); attachments with others end."""
        self._tokens.replace(tokens)
        for peer, attached in list(self._peers.items()):
            if attached.token not in self._tokens:
                log.info("%s, attached as %s, has ended", attached.run, attached.name)
                self._end(peer, UserError("the RaaS has ended, and its token with it"))

    def expire(self, now: float) -> None:
        """End attachments that are silent."""
        for peer, attached in list(self._peers.items()):
            if now - attached.heard >= SILENT_S:
                log.info("%s is silent", attached.run)
                self._detach(peer)

    # -- attachments -------------------------------------------------------------------------------

    def _attach(self, peer: bytes, message: messages.Attach) -> None:
        self._detach(peer)
        try:
            run = self._tokens.admit(message.token, time.monotonic())
        except UserError as error:
            self._log_refusal(error)
            self._send(peer, protocol.frames(protocol.StartFailed(as_failure(error))))
            return
        for other in [p for p, each in self._peers.items() if each.token == message.token]:
            self._end(other, UserError("another process has attached with the token of this one"))
        self._attached += 1
        name = f"{self._attached}"
        self._peers[peer] = AttachedRun(message.token, run, name, time.monotonic())
        log.info("%s is attached as %s", run, name)
        semantics = self._engine.logprob_semantics
        ready = protocol.Ready(
            self._engine.context_length, semantics.temperature, semantics.truncation, 0.0
        )
        self._send(peer, protocol.frames(ready))

    def _end(self, peer: bytes, why: Exception) -> None:
        self._detach(peer)
        self._refuse(peer, UNKNOWN_CALL, why)

    def _detach(self, peer: bytes) -> None:
        if (attached := self._peers.pop(peer, None)) is not None:
            for each in attached.waiting:
                if isinstance(each, WaitingScore) and not each.turn.done():
                    each.turn.set_exception(WeightsError("the attachment has ended"))
            attached.waiting.clear()
            self._spawn(self._forget(attached))

    async def _forget(self, attached: AttachedRun) -> None:
        await self._engine.abort(sorted(attached.running - attached.scoring))
        async with attached.adapter:
            if attached.version is not None:
                await self._adapters.load_adapter(attached.name, None)
            if attached.file is not None:
                attached.file.unlink(missing_ok=True)

    def _dispatch(
        self, peer: bytes, attached: AttachedRun, message: messages.ToShared, buffers: list[bytes]
    ) -> None:
        match message:
            case messages.Detach():
                self._detach(peer)
            case protocol.Generate() | protocol.RoutedGenerate():
                self._admit(peer, attached, protocol.decode_requests(message, buffers))
            case protocol.Abort(ids=ids):
                self._abort(peer, attached, set(ids))
            case protocol.Score() | protocol.Health() | protocol.Ping() | messages.LoadAdapter():
                if attached.calls >= _CALLS_AT_ONCE:
                    self._refuse(peer, message.call, ValueError(f"{_CALLS_AT_ONCE} calls are not answered yet"))  # fmt: skip
                    return
                attached.calls += 1
                self._spawn(self._answer(peer, attached, message, buffers))

    def _log_refusal(self, error: Exception) -> None:
        if count := self._refusals.counted(time.monotonic()):
            log.warning("%d messages were refused; the last one: %s", count, error)

    def _refuse(self, peer: bytes, call: int, error: Exception) -> None:
        self._send(peer, protocol.frames(protocol.Failed(call, as_failure(error))))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        async def kept() -> None:
            try:
                await work
            except EngineLost as error:
                log.error("the engine failed: %s", error)
                self.lost.set()

        task = asyncio.create_task(kept())
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    # -- requests ----------------------------------------------------------------------------------

    def _admit(self, peer: bytes, attached: AttachedRun, requests: list[GenerateRequest]) -> None:
        for request in requests:
            inner = f"{attached.name}/{request.id}"
            if len(attached.waiting) >= MOST_WAITING:
                error: Exception = ValueError(f"{MOST_WAITING} requests wait, as many as may")
            elif attached.version is None:
                error = WrongVersion(f"request {request.id!r}: no adapter is loaded yet")
            elif inner in attached.known:
                error = ValueError(f"request {request.id!r} is here already")
            elif len(request.prompt) > (most := self._engine.context_length):
                error = ValueError(f"request {request.id!r}: a sequence has at most {most} tokens")
            else:
                attached.known.add(inner)
                attached.waiting.append(
                    replace(
                        request,
                        id=inner,
                        adapter=attached.name,
                        session=f"{attached.name}/{request.session}" if request.session else "",
                        priority=0,
                    )
                )
                continue
            self._fail(peer, attached, request.id, error)
        self._fill()

    def _fill(self) -> None:
        """Give free places of the engine away."""
        while sum(len(each.running) for each in self._peers.values()) < self._places:
            waiting = [(peer, each) for peer, each in self._peers.items() if each.waiting]
            if not waiting:
                return
            peer, attached = min(waiting, key=lambda pair: self._turn(pair[1]))
            each = attached.waiting.popleft()
            attached.running.add(each.id)
            if isinstance(each, GenerateRequest):
                self._spawn(self._generate(peer, attached, each))
            else:
                attached.scoring.add(each.id)
                each.turn.set_result(None)

    def _turn(self, attached: AttachedRun) -> tuple[int, int, int]:
        """Requests in the engine of its tenant, of its run, and its own."""
        tenant = attached.run.partition("/")[0]
        return (
            sum(len(e.running) for e in self._peers.values() if e.run.partition("/")[0] == tenant),
            sum(len(e.running) for e in self._peers.values() if e.run == attached.run),
            len(attached.running),
        )

    async def _generate(self, peer: bytes, attached: AttachedRun, request: GenerateRequest) -> None:
        outer = request.id[len(attached.name) + 1 :]
        try:
            result = await self._engine.generate(request)
            attached.counters["tokens_generated"] += len(result.tokens)
            attached.counters["prompt_tokens"] += len(request.prompt)
            attached.finished.append(replace(result, id=outer))
            self._flush_soon(peer, attached)
        except EngineLost:
            raise
        except Exception as error:  # noqa: BLE001 - raised again by the client, for the one request
            self._fail(peer, attached, outer, error)
        finally:
            attached.running.discard(request.id)
            attached.known.discard(request.id)
            self._fill()

    def _fail(self, peer: bytes, attached: AttachedRun, outer: str, error: Exception) -> None:
        attached.failed[outer] = as_failure(error)
        self._flush_soon(peer, attached)

    def _flush_soon(self, peer: bytes, attached: AttachedRun) -> None:
        """What ends within one tick of the event loop goes back as one message."""
        if peer not in self._flushing:
            self._flushing.add(peer)
            asyncio.get_running_loop().call_soon(self._flush, peer, attached)

    def _flush(self, peer: bytes, attached: AttachedRun) -> None:
        self._flushing.discard(peer)
        finished, attached.finished = attached.finished, []
        failed, attached.failed = attached.failed, {}
        if self._peers.get(peer) is attached:
            self._send(peer, protocol.encode_results(finished, failed))

    def _abort(self, peer: bytes, attached: AttachedRun, ids: set[str]) -> None:
        inner = {f"{attached.name}/{each}" for each in ids}
        gone = [each for each in attached.waiting if each.id in inner]
        attached.waiting = deque(r for r in attached.waiting if r.id not in inner)
        for request in gone:
            attached.known.discard(request.id)
            outer = request.id[len(attached.name) + 1 :]
            attached.finished.append(ended_early(outer))
            self._flush_soon(peer, attached)
        if running := sorted((attached.running - attached.scoring) & inner):
            self._spawn(self._engine.abort(running))

    # -- calls -------------------------------------------------------------------------------------

    async def _answer(
        self,
        peer: bytes,
        attached: AttachedRun,
        message: protocol.Score | protocol.Health | protocol.Ping | messages.LoadAdapter,
        buffers: list[bytes],
    ) -> None:
        try:
            reply = await self._call(attached, message, buffers)
        except EngineLost:
            raise
        except Exception as error:  # noqa: BLE001 - raised again by the client, for the one call
            reply = protocol.frames(protocol.Failed(message.call, as_failure(error)))
        finally:
            attached.calls -= 1
        if self._peers.get(peer) is attached:
            self._send(peer, reply)

    async def _call(
        self,
        attached: AttachedRun,
        message: protocol.Score | protocol.Health | protocol.Ping | messages.LoadAdapter,
        buffers: list[bytes],
    ) -> Frames:
        values: dict[str, float] = {}
        match message:
            case messages.LoadAdapter():
                await self._load(attached, message, buffers)
            case protocol.Score(images=images):
                if images is not None:
                    raise ValueError("a shared engine scores no images")
                scores = await self._score(attached, protocol.tokens_of(buffers))
                reply = protocol.Reply(message.call)
                return protocol.frames(reply, scores.astype(np.float32, copy=False))
            case protocol.Health():
                values = await self._gauges(attached)
            case protocol.Ping():
                pass
        return protocol.frames(protocol.Reply(message.call, values))

    async def _score(self, attached: AttachedRun, tokens: npt.NDArray[np.int32]) -> Any:
        """Score in its turn, as a request."""
        if attached.version is None:
            raise WrongVersion("no adapter is loaded yet")
        if len(tokens) > (most := self._engine.context_length):
            raise ValueError(f"a sequence has at most {most} tokens")
        self._scores += 1
        name = f"score {self._scores}"  # no request has this name: theirs begin with a number
        waiting = WaitingScore(name, asyncio.get_running_loop().create_future())
        attached.waiting.append(waiting)
        self._fill()
        await waiting.turn
        try:
            return await self._adapters.score_adapter(attached.name, tokens)
        finally:
            attached.running.discard(name)
            attached.scoring.discard(name)
            self._fill()

    async def _gauges(self, attached: AttachedRun) -> dict[str, float]:
        """Of the attachment; what only the engine knows, of the engine."""
        found = await self._engine.health()
        return {
            **{key: found[key] for key in ("decode_seconds", "kv_cache_usage") if key in found},
            **attached.counters,
            "running": len(attached.running),
            "waiting": len(attached.waiting),
            "version": -1 if attached.version is None else attached.version,
            "max_running": self._places,
        }

    async def _load(
        self, attached: AttachedRun, message: messages.LoadAdapter, buffers: list[bytes]
    ) -> None:
        if len(buffers) != 1 or not 0 < len(buffers[0]) <= MOST_ADAPTER_BYTES:
            raise WeightsError(
                f"version {message.version}: one adapter of at most {MOST_ADAPTER_BYTES} bytes was expected"
            )
        if attached.loading:
            raise WeightsError(
                f"version {message.version}: another version is being loaded; wait for its reply"
            )
        if len(buffers[0]) + self._loading > MOST_LOADING:
            raise WeightsError(
                f"version {message.version}: adapters of {self._loading} bytes are being loaded, of at most {MOST_LOADING}; try later"
            )
        attached.loading = len(buffers[0])
        self._loading += attached.loading
        try:
            await self._replace(attached, message, buffers[0])
        finally:
            self._loading -= attached.loading
            attached.loading = 0

    async def _replace(
        self, attached: AttachedRun, message: messages.LoadAdapter, data: bytes
    ) -> None:
        async with attached.adapter:
            if attached not in self._peers.values():
                raise WeightsError("the attachment has ended")
            file = (
                self._folder
                / f"{attached.name}-{message.version}-{time.monotonic_ns()}.safetensors"
            )
            try:
                await asyncio.to_thread(file.write_bytes, data)
                await asyncio.to_thread(check_adapter, file, message.version, message.digest)
                source = WeightSource(
                    attached.run,
                    message.version,
                    file,
                    message.digest,
                    len(data),
                    0.0,
                    "adapter",
                    message.base,
                )
                await self._adapters.load_adapter(attached.name, source)
            except BaseException:
                file.unlink(missing_ok=True)
                raise
            if attached.file is not None:
                attached.file.unlink(missing_ok=True)
            attached.file, attached.version = file, message.version
