"""Servers of the Model Context Protocol as tools, started as processes of their own."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from play import HERE, all_end, call, one, played, runs, workflow

from astraflow_contrib_tools.config import McpEnvironmentConfig
from astraflow_contrib_tools.mcp_environment import McpEnvironment
from astraflow_core.errors import EnvironmentFailed, PreflightError
from astraflow_core.types import Action, FunctionCall, Observation, Prompt
from astraflow_testing.conformance.subject import context

pytestmark = [
    pytest.mark.slow,
    pytest.mark.turns(
        "contrib/tools/src/**/*.py",
        "contrib/tools/tests/mcp_server.py",
        "contrib/tools/tests/play.py",
        "libs/gateway/src/**/*.py",
        "libs/wire/src/astraflow_wire/host/*.py",
    ),
]

SERVER = [sys.executable, str(HERE / "mcp_server.py")]
STDIO = {"command": [*SERVER, "stdio"]}
COUNT = (call("counted"), "ok")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The URL of an MCP server with streamable HTTP."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen([*SERVER, str(port)], stderr=subprocess.DEVNULL) as process:
        for _ in range(600):
            assert process.poll() is None
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp"
        process.kill()


def counted(text: str) -> tuple[str, int]:
    """The result of ``counted``: the number, and the process of its server."""
    number, _, pid = text.split("<tool_response>\nnumber ")[1].split("\n")[0].partition(" of ")
    return number, int(pid)


def test_a_server_of_each_episode_ends_with_it() -> None:
    async def play() -> list[tuple[str, int]]:
        playing = workflow(mcp={"tests": STDIO})
        together = await asyncio.gather(*(played(playing, *COUNT) for _ in range(2)))
        for trajectory, text in together:
            assert '"description": "How often it was called."' in text
            assert trajectory.metrics["tool_calls"] == 1
        return [counted(text) for _, text in together]

    (first, one_pid), (second, other_pid) = asyncio.run(play())
    assert (first, second) == ("1", "1") and one_pid != other_pid
    assert not runs(one_pid) and not runs(other_pid)


def test_a_shared_server_lives_on_and_is_started_again_when_it_was_killed(tmp_path: Path) -> None:
    async def play() -> None:
        playing = workflow(mcp={"tests": {**STDIO, "shared": True}})
        told = [counted((await played(playing, *COUNT))[1]) for _ in range(2)]
        assert [number for number, _ in told] == ["1", "2"] and told[0][1] == told[1][1]
        pid = tmp_path / "pid"
        episodes = [
            asyncio.create_task(played(playing, call("never", pid=str(pid)))) for _ in range(2)
        ]
        while not pid.exists() or not pid.read_text().endswith("\n"):
            await asyncio.sleep(0.05)
        os.kill(told[0][1], signal.SIGKILL)
        for outcome in await asyncio.gather(*episodes, return_exceptions=True):
            assert isinstance(outcome, EnvironmentFailed) and outcome.kind == "tool_server"
            assert "MCP server 'tests'" in str(outcome) and "in a call of 'never'" in str(outcome)
        number, other = counted((await played(playing, *COUNT))[1])
        assert number == "1" and other != told[0][1]

    asyncio.run(play())


@pytest.mark.parametrize("shared", [True, False])
def test_a_server_over_http(url: str, shared: bool) -> None:
    server = {"url": url, "shared": shared, "tools": ["multiply", "broken"]}
    said = (call("multiply", a=6, b=7), call("broken"), call("counted"), "it is 42")
    trajectory, text = one(*said, mcp={"tests": server})
    assert "<tool_response>\n42\n" in text and "no such page" in text
    assert "there is no tool 'counted'; there are multiply, broken" in text
    assert trajectory.metrics["tool_calls"] == 1 and trajectory.metrics["tool_errors"] == 2


def test_a_server_over_http_is_a_world(url: str) -> None:
    keys = {"server": {"url": url}, "score": "multiply", "tool_deadline_s": 3, "turns": 3}

    async def play() -> tuple[Observation, ...]:
        world = McpEnvironment(McpEnvironmentConfig(**keys), context("raas", Path("r")))
        prompt = Prompt("one", {"prompt": "Count.", "arguments": {"a": 6, "b": 7}})
        try:
            first = await world.reset(prompt, 1)
            told = await world.step(Action("", (FunctionCall("1", "counted", {}),)))
            late = await world.step(Action("", (FunctionCall("2", "never", {"pid": "/dev/null"}),)))
            return first, told, late, await world.step(Action("done"))
        finally:
            await world.close()

    first, told, late, over = asyncio.run(play())
    assert "multiply" not in {tool["function"]["name"] for tool in first.tools}
    assert told.messages[0]["content"].startswith("number ")
    assert late.messages[0]["content"] == "error: no result within 3 s" and late.outcome is None
    assert over.reward == 42.0 and over.metrics == {"tool_calls": 1.0, "tool_errors": 1.0}


@pytest.mark.parametrize("over", ["stdio", "http"])
def test_a_result_of_ten_megabytes_is_cut(url: str, over: str) -> None:
    server = STDIO if over == "stdio" else {"url": url}
    trajectory, text = one(
        call("huge", size=10_000_000),
        "ok",
        mcp={"tests": server},
        max_result=100,
        tool_deadline_s=120,
    )
    assert "characters are left out]" in text and len(text) < 10_000
    assert trajectory.metrics["tool_calls"] == 1


@pytest.mark.parametrize("over", ["stdio", "http"])
def test_a_tool_that_never_returns_is_an_error_to_the_model(
    url: str, over: str, tmp_path: Path
) -> None:
    server = STDIO if over == "stdio" else {"url": url}
    pid = tmp_path / "pid"
    said = (call("never", pid=str(pid)), "sorry")
    _, text = one(*said, mcp={"tests": server}, tool_deadline_s=3)
    assert "error: no result within 3 s" in text
    assert runs(int(pid.read_text())) == (over == "http")


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_a_server_that_ignores_the_end_of_its_input_ends_with_a_killed_raas(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    server = {"command": [*SERVER, "stays"]}
    code = f"""
from play import call, one
one(call("never", pid={str(pid)!r}), mcp={{"tests": {server!r}}}, tool_deadline_s=120)
"""
    with subprocess.Popen([sys.executable, "-c", code], cwd=HERE) as raas:
        while not pid.exists() or not pid.read_text().endswith("\n"):
            assert raas.poll() is None
            time.sleep(0.05)
        raas.kill()
    assert all_end(pid.read_text())


@pytest.mark.parametrize(
    ("server", "says"),
    [
        ({"command": [*SERVER, "broken"]}, "(?s)'tests'.*cannot be used: .*the door is locked"),
        ({"command": ["/no/such/program"]}, "cannot be used: .*No such file"),
        ({"url": "http://127.0.0.1:9/mcp"}, "cannot be used: .*(connect|refused|fail)"),
        (
            {"command": ["sleep", "600"], "start_deadline_s": 1},
            "is not ready after 1 s",
        ),
    ],
)
def test_a_server_that_cannot_start_fails_the_episode(server: dict[str, Any], says: str) -> None:
    with pytest.raises(EnvironmentFailed, match=says) as failed:
        one("ok", mcp={"tests": server})
    assert failed.value.kind == "tool_server"


def test_a_server_over_http_that_is_gone_fails_the_episode(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pid = tmp_path / "pid"

    async def play() -> None:
        command = [*SERVER, str(port)]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            playing = workflow(mcp={"tests": {"url": f"http://127.0.0.1:{port}/mcp"}})
            while True:
                try:
                    await played(playing, *COUNT)
                    break
                except EnvironmentFailed:
                    await asyncio.sleep(0.1)
            episode = asyncio.create_task(played(playing, call("never", pid=str(pid))))
            while not pid.exists() or not pid.read_text().endswith("\n"):
                await asyncio.sleep(0.05)
            process.kill()
            with pytest.raises(EnvironmentFailed, match="was lost in a call of 'never'"):
                await episode

    asyncio.run(play())


def test_what_does_not_fit_is_refused(url: str) -> None:
    with pytest.raises(PreflightError, match="has no tool 'divide'; it has multiply, counted"):
        one("ok", mcp={"tests": {"url": url, "tools": ["divide"]}})
    with pytest.raises(PreflightError, match="'one' and MCP server 'two' both have a tool"):
        one("ok", mcp={"one": {"url": url}, "two": {"url": url}})
    with pytest.raises(PreflightError, match=r"names \$NO_SUCH_VARIABLE, which is not set"):
        headers = {"Authorization": "$NO_SUCH_VARIABLE"}
        one("ok", mcp={"tests": {"url": url, "headers": headers}})
