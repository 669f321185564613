"""A server of the Model Context Protocol as a world. The server is of the standard library alone, the client is mcp's."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from play import HERE, all_end, runs

from astraflow_contrib_tools.config import McpEnvironmentConfig
from astraflow_contrib_tools.mcp_environment import McpEnvironment
from astraflow_core.errors import EnvironmentFailed, PreflightError, PromptError
from astraflow_core.types import Action, FunctionCall, Observation, Outcome, Prompt
from astraflow_testing.conformance.environment import Acts, EnvironmentConformance
from astraflow_testing.conformance.subject import Subject, context, installed

pytestmark = pytest.mark.slow

DIAL = [sys.executable, "-I", "-S", str(HERE / "dial_server.py")]
KEYS = {"server": {"command": DIAL}, "reset": "begin", "score": "score", "end_tools": ["finish"]}
FIVE = Prompt("five", {"prompt": "Turn it.", "arguments": {"target": 4}})
SEED = 2**62 + 11  # odd, below 2**31 too


def call(name: str, **arguments: Any) -> FunctionCall:
    return FunctionCall(f"id-{name}-{len(arguments)}", name, arguments)


def act(*calls: FunctionCall, text: str = "") -> Action:
    return Action(text, calls)


def with_environment(keys: dict[str, Any], use: Callable[[McpEnvironment], Awaitable[Any]]) -> Any:
    async def used() -> Any:
        config = McpEnvironmentConfig(**keys)
        environment = McpEnvironment(config, context("raas", Path("r")))
        try:
            return await use(environment)
        finally:
            await environment.close()

    return asyncio.run(used())


def played(keys: dict[str, Any], *actions: Action, task: Prompt = FIVE) -> list[Observation]:
    async def play(environment: McpEnvironment) -> list[Observation]:
        seen = [await environment.reset(task, SEED)]
        return seen + [await environment.step(action) for action in actions]

    return list(with_environment(keys, play))


class TestConformance(EnvironmentConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed("environment", "mcp", {**KEYS, "keeps": True, "turns": 3})

    @pytest.fixture
    def tasks(self) -> list[Prompt]:
        return [FIVE, Prompt("three", {"prompt": "Turn the dial."})]

    @pytest.fixture
    def acts(self) -> Acts:
        def turned(observation: Observation, generator: random.Random) -> Action:
            return act(call("turn", by=generator.randint(1, 3)))

        return turned


def test_an_episode_ends_by_a_tool_and_is_scored_by_one_that_is_not_offered() -> None:
    first, turned, over = played(
        KEYS, act(call("turn", by=5)), act(call("finish"), call("turn", by=9))
    )
    assert [tool["function"]["name"] for tool in first.tools] == [
        "turn",
        "type_in",
        "show",
        "finish",
        "die",
    ]
    assert [message["content"].partition(" (")[0] for message in first.messages] == [
        "Turn it.",
        "The dial is at 0; turn it to 5.",  # 4 by the prompt, and 1 by the seed
    ]
    assert turned.messages[0]["content"] == "It is at 5." and turned.reward == 0.0
    assert over.outcome is Outcome.FINISHED and over.reward == 1.0
    assert "the episode is over" in over.messages[1]["content"]
    assert over.metrics == {"tool_calls": 2.0, "tool_errors": 1.0, "off": 0.0}


def test_an_episode_ends_by_a_message_or_by_its_turns() -> None:
    *_, over = played(KEYS, act(call("turn", by=4)), Action("That is it."))
    assert over.outcome is Outcome.FINISHED and over.reward == pytest.approx(0.8)
    keys = {**KEYS, "final_message": "asks", "turns": 2}
    _, asked, over = played(keys, Action("Is that it?"), act(call("turn", by=1)))
    assert asked.outcome is None and asked.messages[0] == {
        "role": "user",
        "content": "Call a tool.",
    }
    assert over.outcome is Outcome.TRUNCATED and over.reward == pytest.approx(0.2)


def test_turns_earn_by_how_much_the_score_rose() -> None:
    keys = {**KEYS, "scored": "turn", "turns": 3}
    turns = [act(call("turn", by=by)) for by in (2, -1, 4)]
    rewards = [observation.reward for observation in played(keys, *turns)]
    assert rewards == pytest.approx([0.0, 0.4, -0.2, 0.8])


def test_a_reply_can_be_the_argument_of_a_tool() -> None:
    keys = {**KEYS, "text_tool": "type_in", "turns": 2}
    first, wrong, over = played(keys, Action("up"), Action(" 5 "))
    assert first.tools == ()
    assert wrong.messages[0]["role"] == "user" and "invalid literal" in wrong.messages[0]["content"]
    assert over.reward == 1.0 and over.metrics["tool_errors"] == 1


@pytest.mark.parametrize("keeps", [False, True])
def test_an_episode_has_a_server_of_its_own_or_a_reset_one(keeps: bool) -> None:
    pids: list[int] = []

    async def play(environment: McpEnvironment) -> None:
        for _ in range(2):
            first = await environment.reset(FIVE, SEED)
            pids.append(int(first.messages[-1]["content"].rpartition("(")[2][:-1]))
            told = await environment.step(act(call("turn", by=1)))
            assert told.messages[0]["content"] == "It is at 1."
        assert runs(pids[-1])

    with_environment({**KEYS, "keeps": keeps}, play)
    assert (pids[0] == pids[1]) == keeps
    assert all_end(" ".join(map(str, pids)))


def test_a_server_that_ends_fails_its_episode_and_the_next_one_has_a_new_one() -> None:
    async def play(environment: McpEnvironment) -> None:
        await environment.reset(FIVE, SEED)
        with pytest.raises(
            EnvironmentFailed, match=r"'server'.*was lost in a call of 'die'"
        ) as failed:
            await environment.step(act(call("die")))
        assert failed.value.kind == "tool_server"
        await environment.reset(FIVE, SEED)
        assert (await environment.step(act(call("turn", by=5), call("finish")))).reward == 1.0

    with_environment({**KEYS, "keeps": True}, play)


@pytest.mark.parametrize(
    "told", ["NaN", "a lot", '{"points": 1}', "[1]", '{"score": "1"}', "1e400"]
)
def test_a_score_that_is_none_fails_the_episode(told: str) -> None:
    keys = {**KEYS, "server": {"command": [*DIAL, told]}}
    with pytest.raises(EnvironmentFailed, match="the server's tool 'score' gave"):
        played(keys, Action("done"))


@pytest.mark.parametrize("told", ["0.25", '{"score": 0.25}', '{"result": 0.25}'])
def test_a_score_is_a_number_or_a_field(told: str) -> None:
    assert played({**KEYS, "server": {"command": [*DIAL, told]}}, Action("done"))[1].reward == 0.25


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        (
            {"score": "points"},
            "environment 'mcp': MCP server 'server' has no tool 'points'; it has begin",
        ),
        ({"end_tools": ["stop"]}, "has no tool 'stop'"),
        ({"text_tool": "finish"}, "'finish', which needs 0 arguments; expected a tool with one"),
    ],
)
def test_what_the_server_lacks_is_named(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(PreflightError, match=says):
        played({**KEYS, **keys})


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"keeps": True, "reset": "none"}, "name the tool that resets it"),
        ({"scored": "turn", "score": "none"}, "needs score"),
        ({"end_tools": ["score"]}, "'score' of end_tools is not offered"),
        ({"server": {}}, "give one of command and url"),
        ({"server": {"command": ["x"], "shared": True}}, "shared"),
    ],
)
def test_keys_that_do_not_fit_are_refused(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        McpEnvironmentConfig(**{**KEYS, **keys})


@pytest.mark.parametrize("data", [{}, {"prompt": 3}, {"prompt": "x", "arguments": [1]}])
def test_a_prompt_that_does_not_fit_is_named(data: dict[str, Any]) -> None:
    with pytest.raises(PromptError, match="'odd'"):
        played({"server": {"command": DIAL}}, task=Prompt("odd", data))
