"""Environments of a server with OpenEnv's protocol; the real OpenEnv is in tests/test_openenv.py."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from astraflow_contrib_openenv.config import OpenEnvConfig, OpenEnvTasksConfig
from astraflow_contrib_openenv.environment import OpenEnvEnvironment
from astraflow_contrib_openenv.task_api import OpenEnvTasks
from astraflow_core.errors import EnvironmentFailed, PreflightError, PromptError
from astraflow_core.types import Action, FunctionCall, Observation, Outcome, Prompt
from astraflow_environments.keys import EnvironmentKeys
from astraflow_environments.pool import EnvironmentPool
from astraflow_testing.conformance.subject import context

STAND_IN = str(Path(__file__).with_name("stand_in_server.py"))
COMMAND = [sys.executable, STAND_IN, "{port}"]
PROMPT = Prompt("p", {"seed": 5})
NUMBER = str(random.Random(5).randint(1, 9))
OTHER = "1" if NUMBER != "1" else "2"


def play(does: Callable[[OpenEnvEnvironment], Awaitable[Any]], folder: Path = Path("/nonexistent"), **keys: Any) -> Any:  # fmt: skip
    """What ``does`` returns of an environment that is closed afterwards."""

    async def run() -> Any:
        environment = OpenEnvEnvironment(OpenEnvConfig(**keys), context("raas", folder))
        try:
            return await does(environment)
        finally:
            await environment.close()

    return asyncio.run(run())


def said(
    actions: list[Action], prompt: Prompt = PROMPT
) -> Callable[[Any], Awaitable[list[Observation]]]:
    async def does(environment: OpenEnvEnvironment) -> list[Observation]:
        return [await environment.reset(prompt, 0)] + [
            await environment.step(action) for action in actions
        ]

    return does


def text(observation: Observation) -> str:
    return "\n".join(str(message["content"]) for message in observation.messages)


def call(name: str, arguments: Any) -> Action:
    return Action("", (FunctionCall("c", name, arguments),))


def test_replies_are_put_into_the_field_of_the_action(url: str) -> None:
    replies = [Action(OTHER), Action(f"I think.\n<action>{NUMBER}</action>")]
    begun, no, yes = play(said(replies), url=url, metrics=["tries"])
    assert text(begun) == "text: 1 to 9" and text(no) == "text: no\ntries: 1"
    assert (yes.reward, yes.outcome, yes.metrics) == (
        1,
        Outcome.FINISHED,
        {"tries": 2, "illegal_actions": 0},
    )
    first, wrong, cut = play(
        said([Action("x"), Action("y")]), url=url, fields=["text"], instructions="Go.", action_field="guess", turns=2
    )  # fmt: skip
    assert (
        text(first) == "Go.\n1 to 9" and text(wrong) == "Invalid message: message: Field required"
    )
    assert cut.outcome is Outcome.TRUNCATED and cut.metrics == {"illegal_actions": 2}


def test_objects_and_calls_are_actions(url: str) -> None:
    good = f'So: {{"message": "{NUMBER}"}} it is'
    _, *told, yes = play(
        said([Action("no"), Action("{"), Action("[1]"), Action(good)]), url=url, actions="json"
    )
    assert yes.reward == 1 and all(
        "no JSON object" in text(one) or "not a JSON" in text(one) for one in told
    )
    calls = [
        call("act", {"message": OTHER}),
        call("fly", {}),
        call("act", "{"),
        Action("1"),
        call("act", {}),
    ]
    begun, no, *told, yes = play(
        said([*calls, call("act", {"message": NUMBER})]), url=url, actions="tools"
    )
    function = begun.tools[0]["function"]
    assert (function["name"], function["description"]) == ("act", "One guess.")
    assert function["parameters"] == {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]}  # fmt: skip
    assert no.messages[0]["role"] == "tool" and yes.reward == 1
    assert [text(one) for one in told] == [
        "There is no tool 'fly'; call act.", "The arguments of act are not a JSON object.", "Call a tool: act.",
        "Invalid message: message: Field required",
    ]  # fmt: skip
    begun, no, yes = play(
        said([call("guess", {"message": OTHER}), call("guess", {"message": NUMBER})]),
        url=url,
        actions="mcp",
    )
    assert begun.tools[0]["function"]["name"] == "guess" and yes.reward == 1


def test_an_integer_is_the_last_one_of_a_reply(url: str) -> None:
    _, none, refused = play(
        said([Action("none"), Action("7 or 8.")]), url=url, action_type="integer"
    )
    assert "has no number" in text(none)
    assert "Field required" in text(refused)  # the stand-in wants a text


def test_errors_of_an_environment_fail_or_become_observations(url: str) -> None:
    raises = Prompt("p", {"reset": {"does": "raises"}})
    with pytest.raises(EnvironmentFailed, match="raised on its server: no more") as caught:
        play(said([Action("1")], raises), url=url)
    assert caught.value.kind == "error"
    _, told = play(said([Action("1")], raises), url=url, errors="tell")
    assert text(told) == "no more" and told.reward == 0


def test_each_failure_of_a_server_has_its_kind_and_name(url: str) -> None:
    expected = {
        "nan": ("malformed", "that is not a JSON object"), "no json": ("malformed", "that is not a JSON object"),
        "a list": ("malformed", "that is not a JSON object"), "no data": ("malformed", "which has no data"),
        "huge": ("malformed", "more than 16777216 bytes"), "observation": ("malformed", "which is not an object"),
        "reward": ("malformed", "the reward 'much'"), "done": ("malformed", "that it is over: None"),
        "fields": ("malformed", "an observation without 'text'"), "bytes": ("malformed", "sent bytes"),
        "closes": ("lost", f"server {url} closed the connection"), "hangs": ("timeout", "within 0.3 s"),
        "over": ("malformed", "began an episode that is over"),
    }  # fmt: skip

    async def failures() -> dict[str, tuple[str, str]]:
        table = {"use": "openenv", "url": url, "fields": ["text"]}
        keys = EnvironmentKeys(environment=table, most_environments=1, step_deadline_s=0.3)
        pool, found = EnvironmentPool(keys, context("raas", Path("/nonexistent"))), {}
        for does in expected:
            with pytest.raises(EnvironmentFailed) as caught:
                async with pool.episode() as environment:
                    await environment.reset(Prompt("p", {"reset": {"does": does}}), 1)
                    await environment.step(Action("1"))
            found[does] = caught.value.kind, caught.value.reason
        async with pool.episode() as environment:
            await environment.reset(PROMPT, 1)
            assert (await environment.step(Action(NUMBER))).reward == 1
        await pool.close()
        return found

    for does, (kind, reason) in asyncio.run(failures()).items():
        assert kind == expected[does][0] and expected[does][1] in reason, (does, kind, reason)


def test_a_session_is_made_anew_where_the_one_before_was_lost(url: str) -> None:
    async def does(environment: OpenEnvEnvironment) -> Observation:
        await environment.reset(PROMPT, 0)
        assert environment._connection is not None and environment._connection._socket is not None
        environment._connection._socket._response.connection.transport.abort()  # type: ignore[union-attr]
        await environment.reset(PROMPT, 0)
        return await environment.step(Action(NUMBER))

    assert play(does, url=url).reward == 1


def test_no_one_listens() -> None:
    with pytest.raises(
        EnvironmentFailed, match=r"server http://127\.0\.0\.1:9 cannot be reached"
    ) as caught:
        play(said([]), url="http://127.0.0.1:9")
    assert caught.value.kind == "lost"


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({}, "give one of url, module and command, not none"),
        ({"url": "http://a", "module": "b:app"}, "not url and module"),
        ({"command": ["serve"]}, "command must say where its port goes"),
        ({"url": "127.0.0.1:80"}, "is not http://HOST:PORT"),
        ({"url": "http://example.org", "token_variable": "T"}, "is not sent in plain text"),
    ],
)
def test_mistakes_of_the_keys_are_named(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        OpenEnvConfig(**keys)


def test_a_prompt_with_other_data_and_a_token_that_is_missing_are_named(url: str) -> None:
    with pytest.raises(PromptError, match="prompt 'p': 'reset' is 3"):
        play(said([], Prompt("p", {"reset": 3})), url=url)
    with pytest.raises(PreflightError, match="'NO_SUCH_TOKEN', which is not set"):
        play(said([]), url=url, token_variable="NO_SUCH_TOKEN")


def test_tasks_of_a_server_choose_its_resets(url: str) -> None:
    tasks = OpenEnvTasks(
        OpenEnvTasksConfig(url=url, skip=2, reset={"high": 5}),
        context("dataflow", Path("/nonexistent")),
    )
    assert len(tasks) == 1198
    assert [tasks[0].id, tasks[1197].id] == ["train:2", "train:1199"]
    assert tasks[600].data == {
        "reset": {"high": 5, "split": "train", "index": 602},
        "task": {"id": "train-602"},
    }
    right = str(random.Random(2).randint(1, 5))
    prompt = Prompt("t", {**tasks[0].data, "seed": 0})
    _, last = play(said([Action(right)], prompt), url=url, fields=["text"])
    assert (last.reward, last.outcome) == (1.0, Outcome.FINISHED)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"task_split": "other"}, "has 0 tasks in its split 'other'"),
        ({"task_split": "none"}, "no tasks to choose from .*use 'openenv_seeds'"),
        ({"skip": 5000}, "skip = 5000 leaves none of the 1200 tasks"),
        ({"url": "http://127.0.0.1:9"}, "127.0.0.1:9 does not list its tasks: .*running there"),
    ],
)
def test_a_server_without_such_tasks_is_explained(
    url: str, keys: dict[str, Any], told: str
) -> None:
    with pytest.raises(PromptError, match=told):
        OpenEnvTasks(
            OpenEnvTasksConfig(**{"url": url, **keys}), context("dataflow", Path("/nonexistent"))
        )


@pytest.mark.slow
def test_servers_are_started_as_needed_shared_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTRAFLOW_TOKEN", "not for servers")

    async def run() -> tuple[set[str], str]:
        config = OpenEnvConfig(command=[*COMMAND, "2"], sessions=2)
        three = [OpenEnvEnvironment(config, context("raas", tmp_path)) for _ in range(3)]
        await asyncio.gather(*(each.reset(PROMPT, 0) for each in three))
        servers = {each._server for each in three}
        assert len(servers) == 2
        pids = [server._server.pid for server in servers if server is not None]
        variables = b"".join(Path(f"/proc/{pid}/environ").read_bytes() for pid in pids)
        assert b"not for servers" not in variables
        shared = next(s for s in servers if s is not None and s.users == 2)
        with pytest.raises(EnvironmentFailed, match="refused the session: no place") as caught:
            other = OpenEnvEnvironment(OpenEnvConfig(url=shared.url), context("raas", tmp_path))
            try:
                await other.reset(PROMPT, 0)
            finally:
                await other.close()
        assert caught.value.kind == "capacity"
        # If a server dies, its episodes fail with its last output, and the next episode gets another server.
        played = next(each for each in three if each._server is shared)
        await played.reset(Prompt("p", {"reset": {"does": "dies"}}), 0)
        with pytest.raises(EnvironmentFailed, match="the disk is on fire") as caught:
            await played.step(Action("1"))
        assert caught.value.kind == "lost" and "exit code 3" in caught.value.reason
        await played.close()
        again = OpenEnvEnvironment(config, context("raas", tmp_path))
        await again.reset(PROMPT, 0)
        assert (await again.step(Action(NUMBER))).reward == 1
        for each in (*three, again):
            await each.close()
        return {str(pid) for pid in pids if Path(f"/proc/{pid}").exists()}, caught.value.reason

    left, _ = asyncio.run(run())
    assert not left


@pytest.mark.slow
def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(
        EnvironmentFailed, match=r"(?s)has no server: .*No module named no_such_server"
    ) as caught:
        play(said([]), tmp_path, command=[sys.executable, "-m", "no_such_server", "{port}"])
    assert caught.value.kind == "start"
    late = [sys.executable, "-c", "import time; time.sleep(60)", "{port}"]
    with pytest.raises(EnvironmentFailed, match="has no server"):
        play(said([]), tmp_path, command=late, start_deadline_s=0.5)
