"""Runs a pool, and a host of one, until they are told to stop."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from astraflow_contrib_pool.access import HOSTS, pool_token
from astraflow_contrib_pool.broker.broker import Broker
from astraflow_contrib_pool.broker.ledger import read_ledger, write_ledger
from astraflow_contrib_pool.config import PoolFile
from astraflow_contrib_pool.host import PoolHost, host_name
from astraflow_contrib_pool.service import PoolService
from astraflow_core.errors import UserError
from astraflow_runtime.cli.output import print_line
from astraflow_runtime.cli.running.listening import kept_token, listen_address
from astraflow_runtime.file_lock import lock
from astraflow_wire.host.disk import replace_file
from astraflow_wire.http.server import Server
from astraflow_wire.http.tls import AUTHORITY, RunTls, of_process

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
        accounts = read_ledger(directory)
        asyncio.run(_serve(file, directory, token, host, port, accounts))
    return 0


async def _serve(
    file: PoolFile, directory: Path, token: str, host: str, port: int, accounts: dict[str, Any]
) -> None:
    loop = asyncio.get_running_loop()
    service = PoolService(Broker(file, accounts, loop.time()), token, directory, loop.time)
    tls = of_process()
    async with Server(service.app, host, port) as server:
        replace_file(
            directory / ADDRESS, json.dumps({"url": server.url, "pid": os.getpid()}) + "\n"
        )
        print_line(f"pool at {server.url}; its token is in {directory / TOKEN_FILE}")
        parts: list[Coroutine[Any, Any, None]] = [
            service.keep_time(),
            _save(service.broker, directory),
        ]
        if file.host is not None:
            _own_tls_only()
            own = PoolHost(
                server.url,
                pool_token(token, "host", HOSTS),
                host_name(),
                file.host.slots,
                file.host.places,
                tls,
            )
            await until_signalled([own.run(), *parts], own.stopping)
        else:
            await until_signalled(parts)
    write_ledger(directory, service.broker.accounts)


async def _save(broker: Broker, directory: Path) -> None:
    while True:
        await asyncio.sleep(_SAVE_S)
        await asyncio.to_thread(write_ledger, directory, dict(broker.accounts))


def serve_host(url: str, token: str, name: str | None, slots: int, places: int) -> int:
    """Lend this host to the pool at ``url`` until it is drained, or SIGINT or SIGTERM."""
    tls = of_process()
    _own_tls_only()

    async def serve() -> None:
        host = PoolHost(url, token, name or host_name(), slots, places, tls)
        print_line(f"host {host.name} joins {url} with {slots} slots and {places} places")
        await until_signalled([host.run()], host.stopping)

    asyncio.run(serve())
    return 0


def _own_tls_only() -> None:
    """The TLS of the pool is not that of its runs, which bring theirs."""
    os.environ.pop(AUTHORITY, None)


def client_tls_of(authority: Path | None) -> RunTls | None:
    """What a client of a pool trusts."""
    if authority is not None and not authority.exists():
        raise UserError(f"the certificate of the authority {authority} does not exist")
    return None if authority is None else RunTls(authority)


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
