"""Servers that a RaaS starts: as many as its episodes need, none that outlives it."""

from __future__ import annotations

import asyncio
import os
import sys
import weakref
from pathlib import Path

from astraflow_contrib_openenv.config import PORT, OpenEnvConfig
from astraflow_core.errors import AstraFlowError, EnvironmentFailed
from astraflow_serving.child_server import ChildServer, free_port

_LABEL = "OpenEnv"


class StartedServer:
    """A server and the number of those that use it; it is stopped with the last of them."""

    def __init__(self, config: OpenEnvConfig, folder: Path) -> None:
        port = free_port(None)
        self.url = f"http://127.0.0.1:{port}"
        variables = {name: v for name, v in os.environ.items() if not name.startswith("ASTRAFLOW_")}
        self._server = ChildServer(
            _LABEL,
            self.url,
            command_of(config, port),
            variables,
            folder / f"openenv-{port}.log",
            config.start_deadline_s,
            (),
        )
        self.users = 0
        self.failed = False
        self._start = asyncio.create_task(self._server.start())

    async def ready(self) -> None:
        """Wait until it answers; :class:`EnvironmentFailed` if it does not."""
        try:
            # Those who wait may give up; the next one finds it further on.
            await asyncio.shield(self._start)
        except (AstraFlowError, OSError) as error:
            self.failed = True
            raise EnvironmentFailed("start", f"has no server: {error}") from error

    async def why_gone(self) -> str:
        """How it ended, with its last lines; nothing if it runs."""
        if not self._start.done() or self._start.exception() is not None:
            return ""
        gone = await self._server.why_gone()
        self.failed = self.failed or gone is not None
        return f" ({gone})" if gone else ""

    async def stop(self) -> None:
        """End it."""
        self._start.cancel()
        await asyncio.gather(self._start, return_exceptions=True)
        await self._server.stop()


class Servers:
    """The servers of one configuration on one event loop."""

    def __init__(self, config: OpenEnvConfig) -> None:
        self._config = config
        self._running: list[StartedServer] = []

    def taken(self, folder: Path) -> StartedServer:
        """A server with a free place; one is started if there is none."""
        self._running = [server for server in self._running if not server.failed]
        for server in self._running:
            if server.users < self._config.sessions:
                break
        else:
            server = StartedServer(self._config, folder)
            self._running.append(server)
        server.users += 1
        return server

    async def given_back(self, server: StartedServer) -> None:
        """Free its place; the server stops when all its places are free."""
        server.users -= 1
        if server.users == 0:
            self._running = [each for each in self._running if each is not server]
            await server.stop()


_OF_LOOPS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Servers]] = (
    weakref.WeakKeyDictionary()
)


def servers_of(config: OpenEnvConfig) -> Servers:
    """The servers that all instances of this configuration share."""
    mine = _OF_LOOPS.setdefault(asyncio.get_running_loop(), {})
    return mine.setdefault(config.model_dump_json(), Servers(config))


def command_of(config: OpenEnvConfig, port: int) -> list[str]:
    """The command of a server at a port of loopback."""
    if config.module is None:
        return [part.replace(PORT, str(port)) for part in config.command]
    folder = ["--app-dir", str(config.folder.absolute())] if config.folder is not None else []
    where = ["--host", "127.0.0.1", "--port", str(port), "--log-level", "warning"]
    return [config.python or sys.executable, "-m", "uvicorn", *folder, *where, config.module]
