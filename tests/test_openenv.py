"""Servers of the real OpenEnv, played by us and by OpenEnv's own client."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
from agent_clients.environment import interpreter_with

from astraflow_contrib_openenv.config import OpenEnvConfig
from astraflow_contrib_openenv.environment import OpenEnvEnvironment
from astraflow_core.errors import EnvironmentFailed
from astraflow_core.types import Action, FunctionCall, Prompt
from astraflow_testing.conformance.subject import context
from astraflow_testing.runs import User

pytestmark = [
    pytest.mark.backend,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.turns(
        "contrib/openenv/src/**/*.py",
        "libs/environments/src/**/*.py",
        "examples/openenv*",
        "tests/agent_clients/environment.py",
        "tests/agent_clients/openenv_server.txt",
        unit="openenv",
    ),
]

HERE = Path(__file__).parent
EXAMPLES = HERE.parent / "examples"
CLIENT = """
import asyncio, json, sys
from openenv.core.generic_client import GenericEnvClient
async def main():
    found = []
    async with GenericEnvClient(base_url=sys.argv[1]) as client:
        for seed, guesses in json.loads(sys.argv[2]):
            results = [await client.reset(seed=seed)]
            for guess in guesses:
                results.append(await client.step({"message": guess}))
                if results[-1].done:
                    break
            found.append([[r.observation["text"], r.reward or 0, r.done] for r in results])
    print(json.dumps(found))
asyncio.run(main())
"""


@pytest.fixture(scope="session")
def python() -> str:
    return interpreter_with(HERE / "agent_clients" / "openenv_server.txt")


def test_episodes_are_those_of_its_own_client(python: str, tmp_path: Path) -> None:
    generator = random.Random(1)
    games = [(seed, [str(generator.randint(1, 9)) for _ in range(4)]) for seed in range(12)]

    async def ours() -> tuple[list[Any], list[Any], str]:
        config = OpenEnvConfig(
            module="number_server:app", folder=EXAMPLES / "openenv", python=python, sessions=64, fields=("text",)
        )  # fmt: skip
        one, other = (OpenEnvEnvironment(config, context("raas", tmp_path)) for _ in range(2))
        found = []
        try:
            for seed, guesses in games:
                seen = await one.reset(Prompt("p", {"seed": seed}), 0)
                results = [[seen.messages[0]["content"], 0, False]]
                for guess in guesses:
                    seen = await one.step(Action(guess))
                    text = seen.messages[0]["content"] if seen.messages else "="
                    results.append([text, seen.reward, seen.outcome is not None])
                    if seen.outcome is not None:
                        break
                found.append(results)
            await other.reset(Prompt("p", {"seed": 1}), 0)
            assert one._server is other._server is not None
            command = [python, "-c", CLIENT, one._server.url, json.dumps(games)]
            process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
            told, _ = await process.communicate()
            # The policy sees why the server refuses an action; the death of the server fails the episode with its name.
            config_of_calls = config.model_copy(update={"actions": "tools"})
            calls = OpenEnvEnvironment(config_of_calls.model_copy(update={"url": one._server.url, "module": None}), context("raas", tmp_path))  # fmt: skip
            begun = await calls.reset(Prompt("p", {"seed": 1}), 0)
            assert list(begun.tools[0]["function"]["parameters"]["properties"]) == ["message"]
            refused = await calls.step(Action("", (FunctionCall("c", "act", {"massage": "1"}),)))
            assert "message: Field required" in str(refused.messages[0]["content"])
            await calls.close()
            one._server._server.kill()
            with pytest.raises(EnvironmentFailed) as caught:
                await other.step(Action("1"))
        finally:
            await one.close()
            await other.close()
        return found, json.loads(told), str(caught.value)

    found, expected, reason = asyncio.run(ours())
    for mine, theirs in zip(found, expected, strict=True):
        assert [each[1:] for each in mine] == [each[1:] for each in theirs]
        # The last observation of an episode is not passed on.
        assert [each[0] for each in mine[:-1]] == [each[0] for each in theirs[:-1]]
    assert reason.startswith("lost: server http://127.0.0.1:") and "was killed by SIGKILL" in reason


MCP_SERVER = """
from fastmcp import FastMCP
from openenv.core.env_server import State, create_fastapi_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Observation

class Sums(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True
    def __init__(self):
        server = FastMCP("sums")
        @server.tool()
        def add(a: int, b: int) -> int:
            return a + b
        super().__init__(server)
        self._state = State()
    def reset(self, seed=None, episode_id=None, **_):
        return Observation(metadata={"task": "add"})
    def _step_impl(self, action, timeout_s=None, **_):
        return Observation()
    @property
    def state(self):
        return self._state

app = create_fastapi_app(Sums, CallToolAction, CallToolObservation)
"""


def test_its_mcp_tools_are_called(python: str, tmp_path: Path) -> None:
    (tmp_path / "sums_server.py").write_text(MCP_SERVER)

    async def played() -> list[Any]:
        config = OpenEnvConfig(
            module="sums_server:app", folder=tmp_path, python=python, actions="mcp"
        )
        one = OpenEnvEnvironment(config, context("raas", tmp_path))
        try:
            begun = await one.reset(Prompt("p", {}), 0)
            right = await one.step(Action("", (FunctionCall("c", "add", {"a": 40, "b": 2}),)))
            wrong = await one.step(Action("", (FunctionCall("d", "add", {"a": "x"}),)))
        finally:
            await one.close()
        return [begun, right, wrong]

    begun, right, wrong = asyncio.run(played())
    function = begun.tools[0]["function"]
    assert function["name"] == "add" and set(function["parameters"]["properties"]) == {"a", "b"}
    assert right.messages[0]["tool_call_id"] == "c" and "42" in right.messages[0]["content"]
    assert (
        wrong.messages[0]["tool_call_id"] == "d" and "error" in wrong.messages[0]["content"].lower()
    )


def test_the_example_trains(user: User, python: str) -> None:
    overrides = [
        "run.steps=1", "policies.player.batch_sequences=16", f"workflow.environment.python={python}",
        "policies.player.engine={ use = 'astraflow_testing.table:TableEngine', context = 4096 }",
        "policies.player.trainer={ use = 'astraflow_testing.table:TableTrainer' }",
        "policies.player.algorithm={ use = 'astraflow_testing.table:TableAlgorithm' }",
        "policies.player.data=[]",
    ]  # fmt: skip
    arguments = [part for override in overrides for part in ("--set", override)]
    ended = user.astraflow("run", EXAMPLES / "openenv.toml", *arguments, deadline_s=280)
    assert ended.exit_code == 0, ended.text
    assert ended.summary["steps"] == 1 and ended.summary["failed"] == 0, ended.summary
    assert "illegal_actions" in ended.text and user.left_running() == []
