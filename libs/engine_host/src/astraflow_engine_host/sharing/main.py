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
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

import msgspec
import zmq
import zmq.asyncio
from zmq.auth.asyncio import AsyncioAuthenticator

from astraflow_core.catalog import Catalog
from astraflow_core.component import Kind
from astraflow_core.errors import AstraFlowError, UserError
from astraflow_core.protocols.engine import Engine, ServesAdapters
from astraflow_core.types import ComponentContext, RunInfo
from astraflow_engine_host.failures import describe
from astraflow_engine_host.protocol import Frames
from astraflow_engine_host.sharing.messages import MOST_ADAPTER_BYTES
from astraflow_engine_host.sharing.seats import MOST_LINE, LiveTokens, tokens_of
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
    places: int
    parent: int


class Started(msgspec.Struct, frozen=True):
    """The one line for who starts the process: how many adapters it serves, or the ``failure`` for which it serves none."""

    most_adapters: int = 0
    failure: str = ""


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


async def run(spec: SharedEngineSpec, starter: IO[str], host: IO[bytes]) -> int:
    """Serve until SIGTERM (0), or the end of the engine (1). First it sends the ``starter`` one line: :class:`Started`.
    ``host`` says which tokens are valid, each time that they change."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    began = time.monotonic()
    lines = asyncio.StreamReader(limit=MOST_LINE)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), host
    )
    try:
        with freeze_gc_after_startup():
            engine = built(spec)
            if not (most := cast(ServesAdapters, engine).most_adapters):
                raise UserError(f"engine {spec.use!r} serves no adapters with these keys")
            await engine.start(Path(spec.model))
    except Exception as error:
        told = isinstance(error, AstraFlowError)
        log.error("the shared engine %r did not start: %s", spec.use, error, exc_info=not told)
        _tell(starter, Started(failure=describe(error)))
        return 1

    def ready() -> None:
        _tell(starter, Started(most))
        log.info("%s serves adapters after %.1f s", spec.use, time.monotonic() - began)

    serving = asyncio.create_task(_serve(spec, engine, lines, ready))
    ending = asyncio.create_task(stopped.wait())
    await asyncio.wait({serving, ending}, return_when=asyncio.FIRST_COMPLETED)
    ending.cancel()
    code = serving.result() if serving.done() else 0
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    return code


def _tell(starter: IO[str], what: Started) -> None:
    with starter:
        starter.write(msgspec.json.encode(what).decode() + "\n")


def _listening(context: zmq.asyncio.Context, address: str) -> zmq.asyncio.Socket:
    """In a folder of its owner alone (``socket_folder``). A peer needs a token before its first message is taken (PLAIN)."""
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.SNDHWM, _MOST_SENT)
    socket.setsockopt(zmq.RCVHWM, _MOST_RECEIVED)
    socket.setsockopt(zmq.LINGER, 500)
    socket.setsockopt(zmq.MAXMSGSIZE, MOST_ADAPTER_BYTES)
    socket.setsockopt(zmq.PLAIN_SERVER, 1)
    socket.bind(address)
    return socket


async def _serve(
    spec: SharedEngineSpec, engine: Engine, lines: asyncio.StreamReader, ready: Callable[[], None]
) -> int:
    """Until cancelled, or the engine is lost. The first of the ``lines`` comes before ``ready``, so that no RaaS is refused that
    attaches again after a restart."""
    tokens = LiveTokens()
    shared: SharedEngine | None = None
    context = zmq.asyncio.Context()
    gate = AsyncioAuthenticator(context)
    gate.start()
    gate.passwords["*"] = tokens.passwords
    tasks: list[asyncio.Task[None]] = []
    try:
        tokens.replace(tokens_of(await lines.readline()))
        socket = _listening(context, spec.address)

        def send(peer: bytes, reply: Frames) -> None:
            if not socket.closed:  # what ends after the host has ended is not reported
                socket.send_multipart([peer, *reply])

        shared = SharedEngine(engine, tokens, Path(spec.folder), spec.places, send)
        works = (_receive(socket, shared), _admit(lines, shared), _expire(shared), _lost(shared))
        tasks += [asyncio.create_task(work) for work in works]
        ready()
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        return 1
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        gate.stop()
        if shared is None or not shared.lost.is_set():
            async with asyncio.timeout(_CLOSE_S):
                await engine.close()
        context.destroy()


async def _receive(socket: zmq.asyncio.Socket, shared: SharedEngine) -> None:
    while True:
        parts = await socket.recv_multipart()
        if len(parts) > 1:
            shared.take(parts[0], parts[1], parts[2:])


async def _admit(lines: asyncio.StreamReader, shared: SharedEngine) -> None:
    while line := await lines.readline():
        shared.admit_only(tokens_of(line))
    await shared.lost.wait()  # the host has ended, and this process ends with it


async def _expire(shared: SharedEngine) -> None:
    while True:
        await asyncio.sleep(_LOOK_S)
        shared.expire(time.monotonic())


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
    return asyncio.run(run(spec, starter, sys.stdin.buffer))


if __name__ == "__main__":
    sys.exit(main())
