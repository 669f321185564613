"""Servers of the Model Context Protocol: a task for each connection, which opens and closes it."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import IO, Any

import httpx2
from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CONNECTION_CLOSED, CallToolResult, TextContent
from mcp_types import Tool as McpTool

from astraflow_contrib_tools.config import ToolsConfig
from astraflow_contrib_tools.results import ToolError, in_time, shortened
from astraflow_contrib_tools.toolbox import Tool
from astraflow_core.errors import EnvironmentFailed, PreflightError
from astraflow_wire.host.reaped_processes import ReapedProcesses
from astraflow_wire.host.reaper import VARIABLE

MOST_EVENT_BYTES = 64 << 20
MOST_PAGES = 100
KEPT_ERRORS = 2000


class McpConnection:
    """A connection to one server. What a server answers, errors too, is the model's to read; that it does not start or
    is gone is a failure of the episode. A server by ``command`` has the folder of this process. It and what it starts end with
    the connection, or with this process, even if it is killed."""

    def __init__(self, name: str, config: ToolsConfig, processes: ReapedProcesses) -> None:
        self._name, self._server, self._config = name, config.mcp[name], config
        self._processes = processes
        self._closing = asyncio.Event()
        self._errors: IO[bytes] | None = None
        self.tools: list[Tool] = []

    async def open(self) -> None:
        """Connect, and ask for the tools."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._holding = asyncio.create_task(self._hold(ready))
        try:
            async with asyncio.timeout(self._server.start_deadline_s):
                await asyncio.shield(ready)
        except BaseException as error:
            ready.cancel()
            self._holding.cancel()
            await asyncio.wait({self._holding})
            if isinstance(error, TimeoutError):
                deadline_s = self._server.start_deadline_s
                raise self._failed(f"is not ready after {deadline_s:g} s") from error
            raise

    @property
    def gone(self) -> bool:
        """Whether the connection is over."""
        return self._closing.is_set() or self._holding.done()

    async def close(self) -> None:
        """End the connection, and a server that was started for it; it is killed if it stays."""
        self._closing.set()
        await asyncio.wait({self._holding})

    async def _hold(self, ready: asyncio.Future[None]) -> None:
        # Opened and closed in one task: anyio demands it.
        with tempfile.TemporaryFile() as self._errors:
            try:
                async with self._client(self._errors) as client:
                    self.tools = [self._tool(client, tool) for tool in await self._offered(client)]
                    if not ready.done():
                        ready.set_result(None)
                    await self._closing.wait()
            except Exception as raised:  # noqa: BLE001 - any error of a transport whose server has exited
                error = _first(raised)
                if not isinstance(error, PreflightError):
                    error = self._failed(f"cannot be used: {_told(error)}")
                if not ready.done():
                    ready.set_exception(error)

    @asynccontextmanager
    async def _client(self, errors: IO[bytes]) -> AsyncIterator[Client]:
        async with AsyncExitStack() as stack:
            if self._server.command is not None:
                program, *arguments = self._server.command
                key = f"mcp-{secrets.token_hex(16)}"
                await stack.enter_async_context(self._processes.under(key))
                parameters = StdioServerParameters(
                    command=program,
                    args=arguments,
                    env={**self._server.environment, VARIABLE: key},
                    cwd=self._config.folder,
                )
                transport = stdio_client(parameters, errlog=errors)  # type: ignore[arg-type]
            else:
                assert self._server.url is not None, "one of the two is given"
                http = httpx2.AsyncClient(
                    headers={key: _filled(value) for key, value in self._server.headers.items()},
                    timeout=httpx2.Timeout(30.0, read=None),
                )
                await stack.enter_async_context(http)
                transport = streamable_http_client(
                    self._server.url, http_client=http, max_sse_event_size=MOST_EVENT_BYTES
                )
            yield await stack.enter_async_context(Client(transport, cache=None))

    async def _offered(self, client: Client) -> list[McpTool]:
        found: list[McpTool] = []
        cursor: str | None = None
        for _ in range(MOST_PAGES):
            page = await client.list_tools(cursor=cursor)
            found += page.tools
            if (cursor := page.next_cursor) is None:
                break
        wanted = self._server.tools
        names = [tool.name for tool in found]
        if wanted is not None and (missing := sorted(set(wanted) - set(names))):
            raise PreflightError(
                f"workflow 'tools': MCP server {self._name!r} has no tool {missing[0]!r}; it has {', '.join(names)}"
            )
        return [tool for tool in found if wanted is None or tool.name in wanted]

    def _tool(self, client: Client, tool: McpTool) -> Tool:
        async def call(arguments: Mapping[str, Any]) -> str:
            return await self._called(client, tool.name, arguments)

        origin = f"MCP server {self._name!r}"
        return Tool(tool.name, tool.description or "", tool.input_schema, origin, call)

    async def _called(self, client: Client, name: str, arguments: Mapping[str, Any]) -> str:
        try:
            result = await in_time(
                client.call_tool(name, dict(arguments)), self._config.tool_deadline_s
            )
        except ToolError:
            raise
        except MCPError as error:
            if error.code == CONNECTION_CLOSED or self.gone:
                raise self._lost(name, error) from error
            raise ToolError(shortened(error.message, self._config.max_result)) from error
        except Exception as error:
            raise self._lost(name, error) from error
        text = shortened(_text(result), self._config.max_result)
        if result.is_error:
            raise ToolError(text)
        return text

    def _lost(self, tool: str, error: Exception) -> EnvironmentFailed:
        self._closing.set()  # a shared connection is opened anew by the next episode
        return self._failed(f"was lost in a call of {tool!r}: {_told(error)}")

    def _failed(self, what: str) -> EnvironmentFailed:
        where = self._server.url or " ".join(self._server.command or ())
        said = ""
        if self._errors is not None and not self._errors.closed:
            size = self._errors.seek(0, os.SEEK_END)
            self._errors.seek(max(0, size - KEPT_ERRORS))
            said = self._errors.read(KEPT_ERRORS).decode("utf-8", "replace").strip()
        return EnvironmentFailed(
            "tool_server",
            f"MCP server {self._name!r} ({where:.200}) {what}" + (said and f"\n{said}"),
        )


class McpServers:
    """The servers of a workflow. Connections that episodes share are opened by the first of an event loop, and again when
    they are gone."""

    def __init__(self, config: ToolsConfig) -> None:
        self._config, self._processes = config, ReapedProcesses()
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
        return McpConnection(name, self._config, self._processes)

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


def _first(error: Exception) -> Exception:
    """Of a group the first error that is none."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def _told(error: Exception) -> str:
    return str(_first(error)) or type(_first(error)).__name__


def _filled(value: str) -> str:
    if not value.startswith("$"):
        return value
    if (found := os.environ.get(value[1:])) is None:
        raise PreflightError(
            f"workflow 'tools': a header names {value}, which is not set where the RaaS runs; set it there"
        )
    return found


def _text(result: CallToolResult) -> str:
    """Texts of a result; what is no text is named."""
    parts = [
        part.text if isinstance(part, TextContent) else f"[{part.type}]" for part in result.content
    ]
    if not parts and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(parts)
