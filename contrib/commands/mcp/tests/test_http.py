"""The server over HTTP: authorization, and how it ends."""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from astraflow_testing.runs import User

pytestmark = pytest.mark.slow
PING = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode()


@pytest.fixture
def server(user: User) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """The process, its URL, and the token that it has written."""
    process = user.start("mcp", "--http", "127.0.0.1:0", "--token-file", "mcp.token")
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("MCP at http://127.0.0.1:"), user.last_words()
    file = user.directory / "mcp.token"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    yield process, line.split()[2].rstrip(";"), file.read_text().strip()


def status(url: str, token: str | None, body: bytes = PING, **headers: str) -> int:
    place = httpx2.URL(url)
    given = {
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        **headers,
    }
    if token is not None:
        given["authorization"] = f"Bearer {token}"
    with closing(http.client.HTTPConnection(place.host, place.port, timeout=20)) as connection:
        connection.request("POST", place.path, body, given)
        return connection.getresponse().status


def test_http_needs_the_token_and_no_page_of_a_browser(
    server: tuple[subprocess.Popen[str], str, str], user: User
) -> None:
    process, url, token = server
    for wrong in (None, "", "another", token[:-1], token + "x"):
        assert status(url, wrong) == 401, wrong
    assert status(url, token, host="evil.example") == 421
    assert status(url, token, origin="http://evil.example") == 403
    assert status(url, token, body=b"x" * (2 << 20)) == 413

    async def tools() -> int:
        http = httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"})
        async with (
            http,
            Client(streamable_http_client(url, http_client=http), cache=None) as client,
        ):
            refused = await client.call_tool("status", {})
            assert refused.is_error and "there is no run" in str(refused.content)
            return len((await client.list_tools()).tools)

    assert asyncio.run(tools()) == 9
    process.send_signal(signal.SIGINT)
    ended = user.end(process, 20)
    assert ended.exit_code == 0 and "Traceback" not in ended.err, ended.err


def test_ctrl_c_ends_a_server_that_waits_for_input(user: User) -> None:
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}  # fmt: skip
    asked = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    process = subprocess.Popen(
        [sys.executable, "-m", "astraflow_runtime", "mcp"],
        cwd=user.directory, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(asked).encode() + b"\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["id"] == 1
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
    finally:
        process.kill()
        process.communicate()
