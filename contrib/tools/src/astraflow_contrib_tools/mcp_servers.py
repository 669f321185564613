"""The servers of the Model Context Protocol that a workflow names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from astraflow_contrib_tools.config import ToolsConfig
from astraflow_contrib_tools.mcp_connection import ConnectionUse, McpConnection
from astraflow_contrib_tools.toolbox import Tool


class McpServers:
    """The servers of a workflow. Connections that episodes share are opened by the first of an event loop, and again when
    they are gone."""

    def __init__(self, config: ToolsConfig) -> None:
        self._config = config
        self._use = ConnectionUse(
            "workflow 'tools'", config.folder, config.tool_deadline_s, config.max_result
        )
        self._shared: dict[str, asyncio.Task[McpConnection]] = {}

    @asynccontextmanager
    async def tools(self) -> AsyncIterator[list[Tool]]:
        """Those of all servers, for one episode."""
        own: list[McpConnection] = []
        found: list[Tool] = []
        try:
            for name, server in self._config.mcp.items():
                if server.shared:
                    connection = await self._shared_connection(name)
                else:
                    own.append(connection := self._connection(name))
                    await connection.open()
                found += connection.tools
            yield found
        finally:
            await asyncio.gather(*(connection.close() for connection in own))

    def _connection(self, name: str) -> McpConnection:
        return McpConnection(name, self._config.mcp[name], self._use)

    async def _shared_connection(self, name: str) -> McpConnection:
        opening = self._shared.get(name)
        if opening is None or _over(opening):
            opening = self._shared[name] = asyncio.create_task(self._opened(name))
        return await asyncio.shield(opening)

    async def _opened(self, name: str) -> McpConnection:
        connection = self._connection(name)
        await connection.open()
        return connection


def _over(opening: asyncio.Task[McpConnection]) -> bool:
    if opening.get_loop() is not asyncio.get_running_loop():
        return True
    if not opening.done():
        return False
    return opening.cancelled() or opening.exception() is not None or opening.result().gone
