"""A connection to a server of the Model Context Protocol: a separate task opens and closes it."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import httpx2
from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import (
    CONNECTION_CLOSED,
    CallToolResult,
    ContentBlock,
    ImageContent,
    TextContent,
)
from mcp_types import Tool as McpTool

from astraflow_contrib_tools.config import McpConnectionKeys
from astraflow_contrib_tools.content import Content, bounded, image_part, text_of, text_part
from astraflow_contrib_tools.results import ToolError, in_time
from astraflow_contrib_tools.toolbox import Tool
from astraflow_core.errors import EnvironmentFailed, PreflightError
from astraflow_environments.actions import shortened
from astraflow_wire.host.reaped_processes import ReapedProcesses
from astraflow_wire.host.reaper import VARIABLE

MOST_EVENT_BYTES = 64 << 20
MOST_PAGES = 100
KEPT_ERRORS = 2000
PROCESSES = ReapedProcesses()
"""The servers that this process has started."""


@dataclass(frozen=True, slots=True)
class ConnectionUse:
    """Who uses a connection, and how: ``owner`` as errors name it, ``folder`` where a server is started (``None``: that of
    this process), ``tool_deadline_s`` seconds for a call and ``max_result`` characters of what it gives."""

    owner: str
    folder: Path | None
    tool_deadline_s: float
    max_result: int


class McpConnection:
    """A connection to one server. What a server answers, errors too, is the model's to read; that it does not start or
    is gone is a failure of the episode. A server by ``command`` and what it starts end with the connection, or with this
    process, even if it is killed. ``tools`` are those that are offered, ``every`` has all of the server by their names."""

    def __init__(self, name: str, server: McpConnectionKeys, use: ConnectionUse) -> None:
        self._name, self._server, self._use = name, server, use
        self._closing = asyncio.Event()
        self._errors: IO[bytes] | None = None
        self.tools: list[Tool] = []
        self.every: dict[str, Tool] = {}
        self._whole: dict[str, Callable[[Mapping[str, Any]], Awaitable[Content]]] = {}

    async def open(self) -> None:
        """Connect, and ask for the tools."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._holding = asyncio.create_task(self._run(ready))
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
        if not self._holding.done():  # it may have ended with an earlier event loop
            await asyncio.wait({self._holding})

    async def _run(self, ready: asyncio.Future[None]) -> None:
        # Opened and closed in one task: anyio demands it.
        with tempfile.TemporaryFile() as self._errors:
            try:
                async with self._client(self._errors) as client:
                    found = await self._listed(client)
                    self.every = {tool.name: self._tool(client, tool) for tool in found}
                    self.tools = self._selected_tools()
                    if not ready.done():
                        ready.set_result(None)
                    await self._closing.wait()
            except Exception as raised:  # noqa: BLE001 - any error of a transport whose server has exited
                error = _first(raised)
                if not isinstance(error, PreflightError):
                    error = self._failed(f"cannot be used: {_error_text(error)}")
                if not ready.done():
                    ready.set_exception(error)

    @asynccontextmanager
    async def _client(self, errors: IO[bytes]) -> AsyncIterator[Client]:
        async with AsyncExitStack() as stack:
            if self._server.command is not None:
                program, *arguments = self._server.command
                key = f"mcp-{secrets.token_hex(16)}"
                await stack.enter_async_context(PROCESSES.under(key))
                parameters = StdioServerParameters(
                    command=sys.executable if program == "python" else program,
                    args=arguments,
                    env={**self._server.environment, VARIABLE: key},
                    cwd=self._use.folder,
                )
                transport = stdio_client(parameters, errlog=errors)  # type: ignore[arg-type]
            else:
                assert self._server.url is not None, "one of the two is given"
                http = httpx2.AsyncClient(
                    headers={
                        key: self._filled(value) for key, value in self._server.headers.items()
                    },
                    timeout=httpx2.Timeout(30.0, read=None),
                )
                await stack.enter_async_context(http)
                transport = streamable_http_client(
                    self._server.url, http_client=http, max_sse_event_size=MOST_EVENT_BYTES
                )
            yield await stack.enter_async_context(Client(transport, cache=None))

    async def _listed(self, client: Client) -> list[McpTool]:
        found: list[McpTool] = []
        cursor: str | None = None
        for _ in range(MOST_PAGES):
            page = await client.list_tools(cursor=cursor)
            found += page.tools
            if (cursor := page.next_cursor) is None:
                break
        return found

    async def whole_result(self, name: str, arguments: Mapping[str, Any]) -> Content:
        """What a call gives, however long; :class:`ToolError` if that is an error."""
        self.tool(name)
        return await self._whole[name](arguments)

    def _selected_tools(self) -> list[Tool]:
        wanted = self._server.tools
        if wanted is None:
            return list(self.every.values())
        for name in wanted:
            self.tool(name)
        return [tool for name, tool in self.every.items() if name in wanted]

    def tool(self, name: str) -> Tool:
        """One of its tools, offered or not; :class:`PreflightError` if it has no such tool."""
        if (tool := self.every.get(name)) is None:
            raise PreflightError(
                f"{self._use.owner}: MCP server {self._name!r} has no tool {name!r}; it has {', '.join(self.every)}"
            )
        return tool

    def _tool(self, client: Client, tool: McpTool) -> Tool:
        most = self._use.max_result

        async def call(arguments: Mapping[str, Any]) -> Content:
            try:
                return bounded(await self._called(client, tool.name, arguments), most)
            except ToolError as error:
                raise ToolError(shortened(str(error), most)) from error

        self._whole[tool.name] = partial(self._called, client, tool.name)
        origin = f"MCP server {self._name!r}"
        return Tool(tool.name, tool.description or "", tool.input_schema, origin, call)

    async def _called(self, client: Client, name: str, arguments: Mapping[str, Any]) -> Content:
        try:
            result = await in_time(
                client.call_tool(name, dict(arguments)), self._use.tool_deadline_s
            )
        except ToolError:
            raise
        except MCPError as error:
            if error.code == CONNECTION_CLOSED or self.gone:
                raise self._lost(name, error) from error
            raise ToolError(error.message) from error
        except Exception as error:
            raise self._lost(name, error) from error
        content = _content(result)
        if result.is_error:
            raise ToolError(text_of(content))
        return content

    def _filled(self, value: str) -> str:
        if not value.startswith("$"):
            return value
        if (found := os.environ.get(value[1:])) is None:
            raise PreflightError(
                f"{self._use.owner}: a header names {value}, which is not set where the RaaS runs; set it there"
            )
        return found

    def _lost(self, tool: str, error: Exception) -> EnvironmentFailed:
        self._closing.set()  # a shared connection is opened anew by the next episode
        return self._failed(f"was lost in a call of {tool!r}: {_error_text(error)}")

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


def _first(error: Exception) -> Exception:
    """The first error in a group that is not a group itself."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def _error_text(error: Exception) -> str:
    return str(_first(error)) or type(_first(error)).__name__


def _content(result: CallToolResult) -> Content:
    """Texts of a result, or parts if it has images; content of another type is named."""
    if not result.content and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    parts = [_part(each) for each in result.content]
    return parts if any(part["type"] != "text" for part in parts) else text_of(parts)


def _part(given: ContentBlock) -> dict[str, Any]:
    match given:
        case TextContent():
            return text_part(given.text)
        case ImageContent():
            return image_part(given.mime_type, given.data)
    return text_part(f"[{given.type}]")
