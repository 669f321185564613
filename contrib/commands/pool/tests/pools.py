"""A pool without hosts, served in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astraflow_contrib_pool.access import HOSTS, pool_token
from astraflow_contrib_pool.broker.broker import Broker
from astraflow_contrib_pool.config import PoolFile
from astraflow_contrib_pool.service import PoolService
from astraflow_wire.http.server import Server

TOKEN = "the-token-of-this-pool"


@dataclass
class ServedPool:
    """``service`` at ``url``."""

    url: str
    service: PoolService
    folder: Path

    def token(self, tenant: str = "", generation: int = 0) -> str:
        """Of a tenant, or of hosts."""
        if not tenant:
            return pool_token(TOKEN, "host", HOSTS)
        return pool_token(TOKEN, "tenant", tenant, generation)

    def token_file(self, tenant: str) -> Path:
        path = self.folder / f"{tenant}.token"
        path.write_text(self.token(tenant))
        return path


@contextmanager
def served_pool(folder: Path, **tables: Any) -> Iterator[ServedPool]:
    """With the tenants ada, of weight 3, and bob, unless ``tables`` of the file say otherwise."""
    file = PoolFile.model_validate({"tenants": {"ada": {"weight": 3.0}, "bob": {}}} | tables)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    service = PoolService(Broker(file, {}, loop.time()), TOKEN, folder, loop.time)
    server = Server(service.app, "127.0.0.1", 0)
    try:
        asyncio.run_coroutine_threadsafe(server.start(), loop).result(20)
        yield ServedPool(server.url, service, folder)
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
