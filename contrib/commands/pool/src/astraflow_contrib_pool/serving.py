"""Runs a pool, and a host of one, until they are stopped."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from astraflow_contrib_pool.access import HOSTS, pool_token
from astraflow_contrib_pool.broker.broker import Broker
from astraflow_contrib_pool.broker.ledger import Ledger, read_ledger, write_ledger
from astraflow_contrib_pool.config import PoolFile
from astraflow_contrib_pool.host import PoolHost, host_name
from astraflow_contrib_pool.service import PoolService
from astraflow_core.errors import AstraFlowError, UserError
from astraflow_runtime.cli.output import print_line
from astraflow_runtime.cli.running.listening import kept_token, listen_address
from astraflow_runtime.file_lock import lock
from astraflow_wire.host.disk import replace_file
from astraflow_wire.http.server import Server
from astraflow_wire.http.tls import AUTHORITY, of_process

log = logging.getLogger("astraflow.pool")
TOKEN_FILE = "token"
ADDRESS = "pool.json"
_SAVE_S = 5.0


def serve_pool(file: PoolFile) -> int:
    """Serve a pool, and a host of it if the file has one, until SIGINT or SIGTERM."""
    directory = Path(file.pool.directory).absolute()
    directory.mkdir(0o700, parents=True, exist_ok=True)
    host, port = listen_address(file.pool.listen, "pool.listen", "127.0.0.1:19400")
    token = kept_token(directory / TOKEN_FILE)
    with (directory / "lock").open("a") as held:
        if not lock(held.fileno()):
            raise UserError(
                f"another pool uses {directory}; end it, or choose another pool.directory"
            )
        ledger = read_ledger(directory)
        asyncio.run(_serve(file, directory, token, host, port, ledger))
    return 0


async def _serve(
    file: PoolFile, directory: Path, token: str, host: str, port: int, ledger: Ledger
) -> None:
    loop = asyncio.get_running_loop()
    broker = Broker(file, ledger.accounts, loop.time())
    broker.resume(ledger.windows, loop.time(), time.time())
    service = PoolService(broker, token, directory, loop.time)
    tls = of_process()
    async with Server(service.app, host, port) as server:
        replace_file(
            directory / ADDRESS, json.dumps({"url": server.url, "pid": os.getpid()}) + "\n"
        )
        print_line(f"pool at {server.url}; its token is in {directory / TOKEN_FILE}")
        parts: list[Coroutine[Any, Any, None]] = [
            service.keep_time(),
            _save(broker, directory),
        ]
        if file.host is not None:
            _own_tls_only()
            if len(file.tenants) > 1:
                log.warning(
                    "[host] and %d tenants: code of their runs runs here as the user of the pool and can read its token; if they "
                    "do not trust each other, remove [host] and lend hosts with `astraflow pool join` as another user",
                    len(file.tenants),
                )
            own = PoolHost(
                server.url,
                pool_token(token, "host", HOSTS),
                host_name(),
                file.host.slots,
                file.host.places,
                tls,
                file.host.share_engines,
            )
            await until_signalled([lent(own), *parts], own.stopping)
        else:
            await until_signalled(parts)
    write_ledger(directory, broker.ledger(loop.time(), time.time()))


async def lent(own: PoolHost) -> None:
    """Lend the pool's own host until it is to stop; the pool continues without one that was drained or failed."""
    try:
        await own.run()
    except AstraFlowError as error:
        log.error("%s", error)
    if not own.stopping.is_set():
        log.warning("the pool goes on without its own host; `astraflow pool join` lends it again")
        await own.stopping.wait()


async def _save(broker: Broker, directory: Path) -> None:
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(_SAVE_S)
        ledger = broker.ledger(loop.time(), time.time())
        await asyncio.to_thread(write_ledger, directory, ledger)


def serve_host(
    url: str, token: str, name: str, slots: int, places: int, share_engines: bool
) -> int:
    """Lend this host to the pool at ``url`` until it is drained, or SIGINT or SIGTERM."""
    tls = of_process()
    _own_tls_only()

    async def serve() -> None:
        host = PoolHost(url, token, name, slots, places, tls, share_engines)
        await until_signalled([host.run()], host.stopping)

    asyncio.run(serve())
    return 0


def _own_tls_only() -> None:
    """The TLS of the pool is not that of its runs, which bring theirs."""
    os.environ.pop(AUTHORITY, None)


async def until_signalled(
    parts: list[Coroutine[Any, Any, None]], stopping: asyncio.Event | None = None
) -> None:
    """Run the parts until the first ends, or a signal comes; the first is then given time if it has ``stopping``."""
    loop, signalled = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, signalled.set)
    tasks = [asyncio.ensure_future(part) for part in parts]
    waiting = asyncio.ensure_future(signalled.wait())
    try:
        done, _ = await asyncio.wait([*tasks, waiting], return_when=asyncio.FIRST_COMPLETED)
        if waiting in done and stopping is not None:
            stopping.set()
            done, _ = await asyncio.wait([tasks[0]])
        for task in done:
            if task is not waiting:
                task.result()
    finally:
        for task in (*tasks, waiting):
            task.cancel()
        await asyncio.gather(*tasks, waiting, return_exceptions=True)


def configure() -> None:
    """Logs of a pool go to stderr."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("asyncio").setLevel(logging.WARNING)
