"""A scripted client with the official SDK maintains a real run: observe, decide, act, verify."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters, stdio_client
from mcp_types import TextResourceContents

from astraflow_runtime.audit_log import FILE, read_audit
from astraflow_testing.runs import TABLE_RUN, User

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc"),
]
CONFIG = TABLE_RUN.replace(
    "[policies.solver]\n", '[policies.solver]\ndata = [{ use = "replay", ratio = 0.5 }]\n'
)
STARVED = (
    "run.steps=5000", "raas.max_concurrent_episodes=8", "policies.solver.engine.token_s=0.05",
    "balance.every=1", "balance.grow_above=0.2",
)  # fmt: skip
"""One group at a time: the trainer waits for the one RaaS nearly all of its time."""
DEADLINE_S = 60.0


@asynccontextmanager
async def agent(user: User, *words: str) -> AsyncIterator[Client]:
    """A client of the server that it starts, as agents do."""
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "astraflow_runtime", "mcp", *words],
        env=user.environment,
        cwd=user.directory,
    )
    async with Client(stdio_client(server), cache=None) as client:
        yield client


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    assert isinstance(result.structured_content, dict)
    return result.structured_content


async def until(client: Client, tool: str, holds: Callable[[dict[str, Any]], bool]) -> Any:
    """Observe until something holds."""
    end = time.monotonic() + DEADLINE_S
    while not holds(seen := await call(client, tool)):
        assert time.monotonic() < end, f"{tool} still says {seen}"
        await asyncio.sleep(0.3)
    return seen


def starved(balance: dict[str, Any]) -> bool:
    """RaaS-bound: the trainer waits while few slots are idle because of the staleness bound."""
    report = balance.get("report") or {"policies": {}, "pool": {}}
    waits = [policy["waiting_fraction"] for policy in report["policies"].values()]
    return bool(waits) and min(waits) > 0.5 and report["pool"]["held_back"] < 0.2


async def maintain(user: User, run: Path) -> None:
    async with agent(user, run.name, "--allow-actions") as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        looks, ends = tools["balance"].annotations, tools["stop_run"].annotations
        assert looks and looks.read_only_hint and ends and ends.destructive_hint
        seen = await until(client, "balance", starved)
        assert seen["report"]["pool"]["target"] > 1
        waits = (await call(client, "waits"))["waits"]
        assert any("solver" in json.dumps(wait) for wait in waits)

        why = "the trainer waits for most of its time and nothing is held back"
        await call(client, "add_raas", run=run.name, count=1, reason=why)
        await until(client, "status", lambda s: len([r for r in s["raas"] if r["ready"]]) == 2)
        await until(client, "balance", lambda b: b["pool"]["size"] == 2)

        await call(
            client, "drain_raas", run=run.name, raas="raas-1", reason="the host is needed elsewhere"
        )  # fmt: skip
        await until(client, "balance", lambda b: b["pool"]["size"] == 1)

        table = {"use": "replay", "ratio": 0.25}
        swapped = await call(
            client, "swap_data_policy", run=run.name, place="solver", name="replay", table=table,
            reason="staleness rises with half of each batch replayed",
        )  # fmt: skip
        assert swapped["table"]["ratio"] == 0.25
        status = await call(client, "status")
        assert status["swaps"][-1]["author"].endswith(" (mcp)")
        await call(
            client, "rollback_data_policy", run=run.name, place="solver", name="replay",
            reason="back to what the configuration says",
        )  # fmt: skip

        read = await client.read_resource(f"astraflow://runs/{run.name}/config")
        (config,) = read.contents
        assert isinstance(config, TextResourceContents)
        assert json.loads(config.text)["policies"]["solver"]["batch_sequences"] == 32
        metrics = await call(client, "metrics", figures=["reward"], last=3)
        assert 1 <= len(metrics["policies"]["solver"]) <= 3
        assert {"step", "time", "reward"} == {*metrics["policies"]["solver"][-1]}

        token = (run / "token").read_text().strip()
        for tool in ("status", "waits", "balance", "metrics", "actions", "list_runs"):
            assert token not in json.dumps(await call(client, tool)), tool

        await call(client, "stop_run", run=run.name, reason="the loop of the maintainer was shown")


async def only_look(user: User, run: Path) -> None:
    async with agent(user) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert names == {
            "list_runs", "status", "waits", "balance", "metrics", "summary", "explain_key", "trace", "actions",
        }  # fmt: skip
        refused = await client.call_tool(
            "stop_run", {"run": run.name, "reason": "nobody allowed this"}
        )
        assert refused.is_error
        assert (await call(client, "status"))["state"] == "running"


def test_a_scripted_agent_maintains_a_run(user: User) -> None:
    process = user.start(*user.table_arguments(*STARVED, config=CONFIG))
    run = user.wait_for_steps(2, 60)
    asyncio.run(only_look(user, run))
    asyncio.run(maintain(user, run))
    ended = user.end(process, 60)
    assert "(mcp): the loop of the maintainer was shown" in ended.text
    lines = [json.loads(line) for line in (run / FILE).read_text().splitlines()]
    requests = [
        "/v1/raas/add", "/v1/raas/drain", "/v1/data_policies/swap", "/v1/data_policies/swap", "/v1/stop",
    ]  # fmt: skip
    assert [(line["request"], line["by"], line["outcome"]) for line in lines if line["id"]] == [
        (request, by, outcome)
        for request in requests
        for by, outcome in (("mcp", "asked"), ("dataflow", "done"), ("mcp", "done"))
    ]
    told = [line for line in reversed(read_audit(run)) if line.by == "mcp"]
    assert [(line.request, line.role, line.outcome) for line in told] == [
        (request, "run", "done") for request in requests
    ]
    assert told[0].reason.startswith("the trainer waits") and told[0].asked["count"]
    assert user.left_running() == []
