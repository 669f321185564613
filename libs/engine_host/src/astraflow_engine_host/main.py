"""The engine host: one process, one engine component, one policy; the RaaS talks to it over ZeroMQ.

Started as ``python -m astraflow_engine_host.main SPEC``, with the interpreter that the config names
for the engine. What finishes within one tick of the event loop goes back as one message.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import zmq
import zmq.asyncio
from msgspec import UNSET

from astraflow_core.component import Kind
from astraflow_core.config.load import catalog_of_run, component_context
from astraflow_core.errors import AstraFlowError, EngineLost, WireError
from astraflow_core.protocols.engine import DirectEngine, Engine, ReadsImages
from astraflow_core.types import GenerateRequest, GenerateResult
from astraflow_engine_host import protocol
from astraflow_engine_host.drafts import TakesDrafts
from astraflow_engine_host.failures import as_failure
from astraflow_engine_host.sharing.attached import AttachedEngine, attachment_of
from astraflow_engine_host.spec import TOKEN_VARIABLE, ChildSpec, part_name, read_spec
from astraflow_wire.host.parent import end_with
from astraflow_wire.host.process import freeze_gc_after_startup, retain_freed_memory
from astraflow_wire.images.table import decode

log = logging.getLogger("astraflow.engine_host")
CLOSE_S = 5.0


def build_engine(spec: ChildSpec) -> Engine:
    """The engine that the policy names, with a context and a seed of its own; in a pool maybe a part of a shared one."""
    if (attachment := attachment_of(spec.policy)) is not None:
        return AttachedEngine(attachment)
    config = spec.run_config
    table = config.served[spec.policy].engine
    context = component_context(
        config,
        Path(spec.directory),
        role="engine",
        policy=spec.policy,
        name=part_name(spec.raas, spec.replica),
        token=os.environ.get(TOKEN_VARIABLE, ""),
    )
    folder = Path(spec.directory) / "state" / spec.raas / f"engine-{spec.part}"
    context = replace(context, directory=folder, replica=spec.replica, replicas=table.replicas)
    catalog = catalog_of_run(config, Path(spec.directory))
    engine: Engine = catalog.build(Kind.ENGINE, table, context)
    return engine


class EngineHost:
    """Answers messages with an engine that has started."""

    def __init__(self, engine: Engine, socket: zmq.asyncio.Socket) -> None:
        self._engine = engine
        self._socket = socket
        self._work: set[asyncio.Task[None]] = set()
        self._finished: list[GenerateResult] = []
        self._failed: dict[str, protocol.Failure] = {}
        self._flush_planned = False
        self._closed = False  # asked to close: every request ends with the engine
        self.closing = asyncio.Event()
        self.lost = asyncio.Event()

    async def serve(self) -> None:
        """Handle messages until cancelled, or until one is not valid: a caller that waits for the reply is better
        served by the next host."""
        while True:
            header, *buffers = await self._socket.recv_multipart()
            try:
                self._dispatch(protocol.decode_to_host(header), buffers)
            except WireError as error:
                log.error("%s", error)
                self.lost.set()
                return

    def _dispatch(self, message: protocol.ToHost, buffers: list[bytes]) -> None:
        match message:
            case protocol.Generate() | protocol.RoutedGenerate():
                for request in protocol.decode_requests(message, buffers):
                    self._spawn(self._generate(request))
            case protocol.Abort():
                if not self._closed:
                    self._spawn(self._abort(message.ids))
            case _:
                self._closed = self._closed or isinstance(message, protocol.Close)
                self._spawn(self._answer(message, buffers))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def _generate(self, request: GenerateRequest) -> None:
        try:
            result = await self._engine.generate(request)
            self._finished.append(result)
        except EngineLost as error:
            self._lose(error)
            return
        except Exception as error:  # noqa: BLE001 - raised again by the client, for the one request
            self._failed[request.id] = as_failure(error)
        if not self._flush_planned:
            self._flush_planned = True
            asyncio.get_running_loop().call_soon(self._flush)

    async def _abort(self, ids: list[str]) -> None:
        try:
            await self._engine.abort(ids)
        except EngineLost as error:
            self._lose(error)

    def _lose(self, error: EngineLost) -> None:
        """What was asked is not answered: the end of this process says it all, and is retried."""
        if not self.lost.is_set():
            log.error("the engine failed: %s", error)
            self.lost.set()

    def _flush(self) -> None:
        self._flush_planned = False
        finished, self._finished = self._finished, []
        failed, self._failed = self._failed, {}
        self._socket.send_multipart(protocol.encode_results(finished, failed))

    async def _answer(self, message: Any, buffers: list[bytes]) -> None:
        try:
            reply = await self._call(message, buffers)
        except EngineLost as error:
            self._lose(error)
            return
        except Exception as error:  # noqa: BLE001 - raised again by the client, for the one call
            reply = protocol.frames(protocol.Failed(message.call, as_failure(error)))
        if self._socket.closed:  # the host has exited meanwhile, and there is no reader
            return
        await self._socket.send_multipart(reply)
        if isinstance(message, protocol.Close):
            self.closing.set()

    async def _call(self, message: Any, buffers: list[bytes]) -> protocol.Frames:
        values: dict[str, float] = {}
        match message:
            case protocol.Score():
                tokens = protocol.tokens_of(buffers)
                images = decode(message.images or UNSET, buffers, [len(tokens)])
                logprobs = await (
                    cast(ReadsImages, self._engine).score_images(tokens, images)
                    if images
                    else self._engine.score(tokens)
                )
                return protocol.frames(
                    protocol.Reply(message.call), logprobs.astype(np.float32, copy=False)
                )
            case protocol.Pause(mode=mode):
                await self._engine.pause(mode)  # type: ignore[arg-type]
            case protocol.Resume():
                await self._engine.resume()
            case protocol.LoadWeights():
                await self._engine.load_weights(message.source)
            case protocol.Join(rendezvous=rendezvous):
                await cast(DirectEngine, self._engine).join(rendezvous)
            case protocol.Receive(version=version, buckets=delivered):
                await cast(DirectEngine, self._engine).receive(version, delivered)
            case protocol.LearnDrafts(lengths=lengths):
                tokens = protocol.array(buffers, 0, np.int32, sum(lengths))
                sampled = protocol.array(buffers, 1, np.uint8, sum(lengths)).astype(np.bool_)
                engine = cast(TakesDrafts, self._engine)
                values = {"useful": float(await engine.learn_drafts(tokens, sampled, lengths))}
            case protocol.Sleep(level=level):
                await self._engine.sleep(level)
            case protocol.Wake():
                await self._engine.wake()
            case protocol.Health():
                values = await self._engine.health()
            case protocol.Ping():
                children = resource.getrusage(resource.RUSAGE_CHILDREN)
                values = {"cpu_s": time.process_time() + children.ru_utime + children.ru_stime}
            case protocol.Close():
                await self._engine.close()
        return protocol.frames(protocol.Reply(message.call, values))


async def _start(spec: ChildSpec, socket: zmq.asyncio.Socket) -> Engine | None:
    began = time.monotonic()
    try:
        with freeze_gc_after_startup():
            engine = build_engine(spec)
            await engine.start(Path(spec.run_config.served[spec.policy].model))
        semantics = engine.logprob_semantics
        ready = protocol.Ready(
            engine.context_length,
            semantics.temperature,
            semantics.truncation,
            time.monotonic() - began,
            hasattr(engine, "receive"),
            getattr(engine, "workers", 0),
        )
    except Exception as error:  # the client raises it again; the trace of a bug stays in the log
        told = isinstance(error, AstraFlowError)
        log.error(
            "the engine of policy %r did not start: %s", spec.policy, error, exc_info=not told
        )
        await socket.send_multipart(protocol.frames(protocol.StartFailed(as_failure(error))))
        return None
    await socket.send_multipart(protocol.frames(ready))
    return engine


async def run(spec: ChildSpec) -> int:
    """Start the engine, serve it until the RaaS closes it, SIGTERM, or the engine's own end (1); the exit
    code."""
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.LINGER, 1000)
    socket.connect(spec.address)
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    try:
        engine = await _start(spec, socket)
        if engine is None:
            return 1
        host = EngineHost(engine, socket)
        serving = asyncio.create_task(host.serve())
        events = (host.closing, host.lost, stopped)
        ends = [asyncio.create_task(event.wait()) for event in events]
        await asyncio.wait([serving, *ends], return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
        serving.cancel()
        if not host.closing.is_set():
            async with asyncio.timeout(CLOSE_S):
                await engine.close()
        return 1 if host.lost.is_set() else 0
    finally:
        context.destroy()


def main() -> int:
    """The process's entry point."""
    spec = read_spec(Path(sys.argv[1]))
    end_with(spec.parent)
    retain_freed_memory()
    logging.basicConfig(
        level=logging.INFO,
        format=f"%(asctime)s {spec.raas} engine-{spec.part} %(levelname)s %(message)s",
    )
    return asyncio.run(run(spec))


if __name__ == "__main__":
    sys.exit(main())
