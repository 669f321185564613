"""An MCP server that tests start: ``python mcp_server.py stdio`` or ``python mcp_server.py PORT``."""

from __future__ import annotations

import os
import sys
import time

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("tests")
count = 0


@server.tool()
def multiply(a: int, b: int) -> str:
    """Multiply two numbers."""
    return str(a * b)


@server.tool()
def counted() -> str:
    """How often it was called."""
    global count
    count += 1
    return f"number {count} of {os.getpid()}"


@server.tool()
def huge(size: int) -> str:
    return "a" + "x" * size + "z"


@server.tool()
def never(pid: str) -> str:
    with open(pid, "w") as file:
        file.write(f"{os.getpid()}\n")
    time.sleep(600)
    return ""


@server.tool()
def broken() -> str:
    raise ToolError("no such page")


if __name__ == "__main__":
    where = sys.argv[1]
    if where == "broken":
        sys.exit("the door is locked")
    if where in ("stdio", "stays"):
        server.run("stdio")
        if where == "stays":  # ignores the end of its input
            time.sleep(600)
    else:
        server.run("streamable-http", port=int(where))
