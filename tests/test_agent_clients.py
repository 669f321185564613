"""Unmodified clients play an episode each: the trained tokens are those that the engine sampled."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from agent_clients.environment import CLIENTS, interpreter_with
from agent_clients.players import TEMPLATES, Player, Says, output_of, player, sampled, trained

from astraflow_gateway.server import Gateway

pytestmark = [
    pytest.mark.backend,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.turns(
        "libs/gateway/src/**/*.py",
        "contrib/agent/src/**/*.py",
        "tests/agent_clients/*.py",
        "tests/agent_clients/requirements.txt",
        unit="agent clients",
    ),
]

FOLDER = Path(__file__).parent / "agent_clients"
ANSWER = "It is 23."
NAMES = (
    "openai_chat", "openai_responses", "anthropic", "openai_agents", "openai_agents_chat", "pydantic_ai",
    "pydantic_ai_anthropic", "pydantic_ai_responses", "smolagents", "langgraph", "litellm", "litellm_anthropic",
    "autogen",
)  # fmt: skip
REWRITES = ("smolagents",)
"""Tells the model of its tool calls in words of its own, so that no turn continues the one before."""


@pytest.fixture(scope="session")
def python() -> str:
    return interpreter_with(CLIENTS)


def says(policy: str, text: str) -> str:
    """What a model that can add would say: a call of the tool, then the answer, by a tool if there is one for it."""
    if not re.search(r"<tool_response>\s*23|Observation:\s*23", text):
        call = {"name": "add", "arguments": {"a": 1, "b": 22}}
    elif "final_answer" in text:
        call = {"name": "final_answer", "arguments": {"answer": ANSWER}}
    else:
        return ANSWER
    whole = f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
    begun = '<tool_call>\n{"name": "'
    return whole.removeprefix(begun) if text.endswith('{"name": "') else whole


async def played(python: str, client: str, episodes: int, says: Says = says) -> list[Player]:
    """The episodes of ``client``."""
    async with Gateway() as gateway:
        players = [player(gateway, says) for _ in range(episodes)]
        keys = [each.key for each in players]
        urls = {"OPENAI_BASE_URL": f"{gateway.url}/v1", "ANTHROPIC_BASE_URL": gateway.url}
        said = await output_of([python, str(FOLDER / "play.py"), client, *keys], urls)
    assert said.count(f"\nanswer: {ANSWER}") == episodes, said
    return players


@pytest.mark.parametrize("client", NAMES)
def test_a_client_plays_with_a_tool_streamed_and_not(client: str, python: str) -> None:
    for each in asyncio.run(played(python, client, 2)):
        metrics = each.episode.metrics()
        assert trained(each.episode) == sampled(each.policies)
        assert metrics["agent_calls"] == 2, metrics
        if client in REWRITES:
            assert metrics["prompts_history"] == 1, metrics
        else:
            assert len(each.episode.sequences()) == metrics["prompts_continued"] == 1, metrics


def test_dspy_plays_with_a_tool(python: str) -> None:
    """It writes its history into one message, so that each turn is a root."""

    def answer(policy: str, text: str) -> str:
        if "next_tool_args" in text.rsplit("Respond with", 1)[-1]:
            return _in_plain_text(text)
        return _fields({"reasoning": "I added.", "answer": ANSWER})

    (each,) = asyncio.run(played(python, "dspy", 1, answer))
    assert trained(each.episode) == sampled(each.policies)
    assert len(each.episode.sequences()) == each.episode.metrics()["agent_calls"] == 3


def _in_plain_text(text: str) -> str:
    done = "[[ ## observation_0 ## ]]" in text or '"observation_0"' in text
    name, arguments = ("finish", {}) if done else ("add", {"a": 1, "b": 22})
    return _fields(
        {"next_thought": "I add.", "next_tool_name": name, "next_tool_args": json.dumps(arguments)}
    )


def _fields(fields: dict[str, str]) -> str:
    parts = [f"[[ ## {name} ## ]]\n{value}" for name, value in fields.items()]
    return "\n\n".join([*parts, "[[ ## completed ## ]]"])


ADD = {"type": "object", "properties": {"a": {"type": "integer"}}}
ASK = {"role": "user", "content": "What is 1 + 22?"}
OPENAI_TOOL = {"type": "function", "function": {"name": "add", "parameters": ADD}}
RESPONSES_TOOL = {"type": "function", "name": "add", "parameters": ADD, "strict": None}
REQUESTS: list[tuple[str, dict[str, Any], tuple[str, str], tuple[str, str]]] = [
    (
        "/v1/chat/completions",
        {
            "messages": [ASK],
            "tools": [OPENAI_TOOL],
            "logprobs": True,
            "stream_options": {"include_usage": True},
        },
        ("openai.types.chat", "ChatCompletion"),
        ("openai.types.chat", "ChatCompletionChunk"),
    ),
    (
        "/v1/responses",
        {"input": [ASK], "tools": [RESPONSES_TOOL], "include": ["message.output_text.logprobs"]},
        ("openai.types.responses", "Response"),
        ("openai.types.responses", "ResponseStreamEvent"),
    ),
    (
        "/v1/messages",
        {
            "messages": [ASK],
            "tools": [{"name": "add", "input_schema": ADD}],
            "thinking": {"type": "adaptive"},
            "max_tokens": 200,
        },
        ("anthropic.types", "Message"),
        ("anthropic.types", "RawMessageStreamEvent"),
    ),
]
OTHERS: list[tuple[str, str, Any, tuple[str, str]]] = [
    ("GET", "/v1/models/p", None, ("openai.types", "Model")),
    ("GET", "/v1/models/p", "2023-06-01", ("anthropic.types", "ModelInfo")),
    ("POST", "/v1/messages", "2023-06-01", ("anthropic.types", "ErrorResponse")),
]
EXTENSIONS = ["reasoning_content", "max_model_len"]
"""Fields of other servers' that clients may read, and that these types do not have."""


def test_replies_and_events_are_what_the_types_of_the_clients_say(python: str) -> None:
    template = TEMPLATES / "Qwen-Qwen3-0.6B.jinja"

    async def play() -> None:
        lines: list[Any] = []
        thought = "<think>\nhm\n</think>\n\n"
        call = 'so:\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
        texts = itertools.cycle([thought + call, thought + call, ANSWER, ANSWER])
        async with Gateway() as gateway, httpx.AsyncClient(base_url=gateway.url) as client:
            one = player(gateway, lambda policy, text: next(texts), template)
            headers = {"authorization": f"Bearer {one.key}"}
            for path, body, whole, event in REQUESTS:
                for more in ({}, {"stream": True}, {}, {"stream": True}):
                    reply = await client.post(path, json={**body, **more}, headers=headers)
                    assert reply.status_code == 200, reply.text
                    if not more:
                        lines.append((*whole, reply.json()))
                        continue
                    events = re.findall(r"^data: ({.*)$", reply.text, re.MULTILINE)
                    # The client of Anthropic skips pings, which its types do not have.
                    lines += [
                        (*event, json.loads(each)) for each in events if each != '{"type":"ping"}'
                    ]
            for method, path, version, kind in OTHERS:
                versioned = {"anthropic-version": version} if version else {}
                reply = await client.request(method, path, headers={**headers, **versioned})
                lines.append((*kind, reply.json()))
        given = "".join(json.dumps([*line, EXTENSIONS]) + "\n" for line in lines).encode()
        assert len(lines) > 60
        assert (await output_of([python, str(FOLDER / "strict.py")], {}, given)) == (
            f"{len(lines)} fit"
        )

    asyncio.run(play())
