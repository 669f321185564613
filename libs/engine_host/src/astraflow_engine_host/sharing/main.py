"""The process of a shared engine: started as ``python -m astraflow_engine_host.sharing.main SPEC`` by a host of a pool.

Nothing of a run is imported here: the engine is a component that is installed on this host, and its model a copy of this host.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import sys
import time
from pathlib import Path
from typing import IO, Any, cast

import msgspec
import zmq
import zmq.asyncio

from astraflow_core.catalog import Catalog
from astraflow_core.component import Kind
from astraflow_core.errors import AstraFlowError, UserError
from astraflow_core.protocols.engine import Engine, ServesAdapters
from astraflow_core.types import ComponentContext, RunInfo
from astraflow_engine_host.failures import describe
from astraflow_engine_host.protocol import Frames
from astraflow_engine_host.sharing.messages import MOST_ADAPTER_BYTES
from astraflow_engine_host.sharing.shared import SharedEngine
from astraflow_wire.host.parent import end_with
from astraflow_wire.host.process import freeze_gc_after_startup, retain_freed_memory

log = logging.getLogger("astraflow.shared_engine")
_LOOK_S = 2.0
_CLOSE_S = 10.0
_NAME = "shared"
_MOST_SENT, _MOST_RECEIVED = 10_000, 64
"""Messages in the queues of one peer; one that reads nothing loses replies, and one that floods waits."""


class SharedEngineSpec(msgspec.Struct, frozen=True, kw_only=True):
    """``use`` and ``options`` of the engine, the folder of its ``model``, the ``address`` to listen on, a private ``folder``, how many
    requests are in the engine concurrently (``places``), and the process that it must not outlive (``parent``)."""

    use: str
    options: dict[str, Any]
    model: str
    address: str
    folder: str
    secret: str
    places: int
    parent: int

    def __repr__(self) -> str:
        return f"SharedEngineSpec({self.use!r}, {self.model!r})"


def built(spec: SharedEngineSpec) -> Engine:
    """The engine, to be started. Its seed is another each time, so that hosts and restarts do not sample alike."""
    selected, config = Catalog.discover().validate_options(
        Kind.ENGINE, spec.use, spec.options, "engine"
    )
    folder = Path(spec.folder)
    run = RunInfo(_NAME, 0, 1, 0, (_NAME,), folder)
    engine: Engine = selected.build(
        config, ComponentContext(run, "engine", _NAME, secrets.randbits(31), folder)
    )
    return engine


async def run(spec: SharedEngineSpec, starter: IO[str]) -> int:
    """Serve until SIGTERM (0), or the end of the engine (1). Tells the ``starter`` one line first: nothing, or why it serves none."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    began = time.monotonic()
    try:
        with freeze_gc_after_startup():
            engine = built(spec)
            if not cast(ServesAdapters, engine).most_adapters:
                raise UserError(f"engine {spec.use!r} serves no adapters with these keys")
            await engine.start(Path(spec.model))
    except Exception as error:
        told = isinstance(error, AstraFlowError)
        log.error("the shared engine %r did not start: %s", spec.use, error, exc_info=not told)
        _tell(starter, describe(error))
        return 1
    context = zmq.asyncio.Context()
    try:
        socket = _listening(context, spec.address)
        _tell(starter, "")
        log.info("%s serves adapters after %.1f s", spec.use, time.monotonic() - began)
        serving = asyncio.create_task(_serve(spec, engine, socket))
        ending = asyncio.create_task(stopped.wait())
        await asyncio.wait({serving, ending}, return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        code = serving.result() if serving.done() else 0
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        return code
    finally:
        context.destroy()


def _tell(starter: IO[str], line: str) -> None:
    with starter:
        starter.write(line + "\n")


def _listening(context: zmq.asyncio.Context, address: str) -> zmq.asyncio.Socket:
    """In a folder of its owner alone (``socket_folder``); whoever is in there needs a token too."""
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.SNDHWM, _MOST_SENT)
    socket.setsockopt(zmq.RCVHWM, _MOST_RECEIVED)
    socket.setsockopt(zmq.LINGER, 500)
    socket.setsockopt(zmq.MAXMSGSIZE, MOST_ADAPTER_BYTES)
    socket.bind(address)
    return socket


async def _serve(spec: SharedEngineSpec, engine: Engine, socket: zmq.asyncio.Socket) -> int:
    """Until cancelled, or the engine is lost."""

    def send(peer: bytes, reply: Frames) -> None:
        if not socket.closed:  # what ends after the host has ended is not reported
            socket.send_multipart([peer, *reply])

    shared = SharedEngine(engine, spec.secret, Path(spec.folder), spec.places, send)

    async def receive() -> None:
        while True:
            parts = await socket.recv_multipart()
            if len(parts) > 1:
                shared.take(parts[0], parts[1], parts[2:])

    async def expire() -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            shared.expire(time.monotonic())

    tasks = [asyncio.create_task(work) for work in (receive(), expire(), _lost(shared))]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        return 1
    finally:
        for task in tasks:
            task.cancel()
        if not shared.lost.is_set():
            async with asyncio.timeout(_CLOSE_S):
                await engine.close()


async def _lost(shared: SharedEngine) -> None:
    await shared.lost.wait()


def main() -> int:
    """The process's entry point."""
    spec = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=SharedEngineSpec)
    end_with(spec.parent)
    retain_freed_memory()
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s shared engine %(levelname)s %(message)s"
    )
    # What an engine prints goes to the log, and never to who waits for one line.
    starter = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return asyncio.run(run(spec, starter))


if __name__ == "__main__":
    sys.exit(main())
