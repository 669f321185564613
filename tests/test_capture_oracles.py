"""The recorded calls of the gateway as other libraries process them: OpenEnv's capture, and the renderer of Qwen3 that
verifiers uses."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from agent_clients.environment import ORACLES, interpreter_with
from agent_clients.players import TEMPLATES, Player, output_of, player

from astraflow_gateway.capture.graph import Call
from astraflow_gateway.server import Gateway
from astraflow_testing.scripted_policies import Answer, Truncated

pytestmark = [
    pytest.mark.backend,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.turns(
        "libs/gateway/src/**/*.py",
        "tests/agent_clients/*.py",
        "tests/agent_clients/oracles.txt",
        unit="capture oracles",
    ),
]

SCRIPT = Path(__file__).parent / "agent_clients" / "oracles.py"
SPECIALS = (
    "<|im_start|>", "<|endoftext|>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>",
    "</think>",
)  # fmt: skip
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
THOUGHT = "<think>\nI wonder.\n</think>\n\n"
Json = dict[str, Any]


@pytest.fixture(scope="session")
def python() -> str:
    return interpreter_with(ORACLES)


class Agent:
    """An agent that uses chat completions, and a record of its requests."""

    def __init__(self, client: httpx.AsyncClient, one: Player) -> None:
        self.client, self.one = client, one
        self.asked: list[Json] = []

    async def ask(
        self, *messages: Json, tools: Sequence[Json] = (), after: Json | None = None, **headers: str
    ) -> Json:
        """The reply to ``messages``, without its reasoning. ``after`` is the reply before it."""
        body = {"messages": messages, **({"tools": tools} if tools else {})}
        before = len(self.one.episode.graph.calls)
        given = {"authorization": f"Bearer {self.one.key}"}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        reply = await self.client.post("/v1/chat/completions", json=body, headers=given)
        assert reply.status_code == 200, reply.text
        message: Json = reply.json()["choices"][0]["message"]
        message.pop("reasoning_content", None)
        if len(self.one.episode.graph.calls) > before:
            known = None if after is None else after["number"]
            plain = [{k: v for k, v in each.items() if k != "number"} for each in messages]
            self.asked.append(
                {"messages": plain, "tools": list(tools), "before": known, "call": before}
            )
            message["number"] = before
        return message


Play = Callable[[Agent], Awaitable[None]]


def compared(
    python: str, answers: Sequence[Answer], play: Play
) -> tuple[Player, list[Call], Json, list[Json]]:
    """The episode, its calls in their order, and what the oracles make of it."""

    async def run() -> tuple[Player, list[Call], Json, list[Json]]:
        async with Gateway() as gateway, httpx.AsyncClient(base_url=gateway.url) as client:
            one = player(gateway, {"p": answers}, TEMPLATES / "Qwen-Qwen3-0.6B.jinja", SPECIALS)
            agent = Agent(client, one)
            await play(agent)
        calls = one.episode.graph.calls
        tokenizer = one.policies.tokenizer
        specials = {text: int(tokenizer.encode(text)[0]) for text in tokenizer.special_texts}
        given = {
            "tokenizer": {
                "pairs": int(tokenizer.encode("00")[0]),
                "specials": specials,
                "end": tokenizer.eos_token_ids[0],
            },
            "calls": [
                {
                    "prompt": call.prompt.tolist(),
                    "sampled": call.result.tokens.tolist(),
                    "logprobs": call.result.logprobs.tolist(),
                    "finish": call.result.finish_reason,
                }
                for call in calls
            ],
            "asked": agent.asked,
        }
        told = json.loads(await output_of([python, str(SCRIPT)], {}, json.dumps(given).encode()))
        assert told["openenv"]["wrong"] == []
        for asked, prompt in zip(agent.asked, told["renderers"], strict=True):
            prompt["call"] = calls[asked["call"]]
        return one, calls, told["openenv"], told["renderers"]

    return asyncio.run(run())


def ours(one: Player) -> list[tuple[list[int], list[bool], list[float]]]:
    """What is trained."""
    return [
        (each.tokens.tolist(), each.loss_mask.tolist(), each.logprobs.tolist())
        for each in one.episode.sequences()
    ]


def theirs(openenv: Json) -> list[tuple[list[int], list[bool], list[float]]]:
    """What OpenEnv would train."""
    return [
        (each["tokens"], [bool(bit) for bit in each["mask"]], each["logprobs"])
        for each in openenv["sequences"]
    ]


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def results(reply: Json, *texts: str) -> list[Json]:
    ids = [call["id"] for call in reply["tool_calls"]]
    return [
        {"role": "tool", "tool_call_id": id, "content": text}
        for id, text in zip(ids, texts, strict=True)
    ]


def test_turns_with_tools_and_stripped_reasoning(python: str) -> None:
    async def play(agent: Agent) -> None:
        asked = [{"role": "system", "content": "Be kind."}, user("what is 1 + 22?")]
        first = await agent.ask(*asked, tools=[TOOL])
        asked += [first, *results(first, "23", "it was 23")]
        second = await agent.ask(*asked, tools=[TOOL], after=first)
        asked += [second, *results(second, "44")]
        third = await agent.ask(*asked, tools=[TOOL], after=second)
        asked += [third, user("and now?")]
        await agent.ask(*asked, tools=[TOOL], after=third)

    answers = [f"{THOUGHT}{CALL}\n{CALL}", f"{THOUGHT}so:\n{CALL}", f"{THOUGHT}yes", "no"]
    one, calls, openenv, prompts = compared(python, answers, play)
    assert ours(one) == theirs(openenv)
    assert len(ours(one)) == 2, "a new question drops the thoughts of the turns before"
    assert [each["bridged"] for each in prompts] == [False, True, True, False]
    for each in prompts:
        assert each["prompt"] == each["call"].prompt.tolist()
    assert calls[3].parent is None


def test_turns_without_reasoning_continue(python: str) -> None:
    async def play(agent: Agent) -> None:
        asked: list[Json] = []
        said = None
        for question in ("is it 10?", "is it 11?", "is it 12?"):
            asked.append(user(question))
            said = await agent.ask(*asked, after=said)
            asked.append(said)

    one, _, openenv, prompts = compared(python, ["no", "no, more", "yes"], play)
    assert ours(one) == theirs(openenv) and len(ours(one)) == 1
    for each in prompts:
        # The renderer encodes such turns again, the gateway keeps the sampled ids: here they are the same.
        assert each["prompt"] == each["call"].prompt.tolist()


def test_retries_and_branches(python: str) -> None:
    async def play(agent: Agent) -> None:
        question = user("what is it?")
        first = await agent.ask(question)
        again = await agent.ask(question, x_stainless_retry_count="1")
        assert again["content"] == first["content"]
        other = await agent.ask(question)
        for text in ("a", "b"):
            await agent.ask(question, other, user(text), after=other)

    one, calls, openenv, prompts = compared(python, ["x", "y", "left", "right"], play)
    assert len(calls) == 4, "a retry is no call"
    assert [each[0] for each in ours(one)] == [each[0] for each in theirs(openenv)]
    assert openenv["discarded"] == ["0"]
    # OpenEnv leaves out the reply that was asked for again, and trains a shared turn in each branch; every sampled token
    # is trained once here.
    masks = Counter(sum(mask) for _, mask, _ in ours(one))
    sampled = [len(call.result.tokens) for call in calls]
    assert masks == Counter([sampled[0], sampled[1] + sampled[2], sampled[3]])
    assert sum(sum(mask) for _, mask, _ in theirs(openenv)) == sum(sampled) + sampled[1]
    for (_, own, probs), (_, mask, logprobs) in zip(ours(one), theirs(openenv), strict=True):
        assert all(np.asarray(mask)[own]) and np.array_equal(
            np.asarray(logprobs)[own], np.asarray(probs)[own]
        )
    for each in prompts:
        assert each["prompt"] == each["call"].prompt.tolist()


def test_a_reply_that_was_cut_continues(python: str) -> None:
    async def play(agent: Agent) -> None:
        first = await agent.ask(user("count"), tools=[TOOL])
        asked = [user("count"), first, user("go on")]
        await agent.ask(*asked, tools=[TOOL], after=first)

    one, calls, openenv, prompts = compared(python, [Truncated("one two thr"), "four"], play)
    assert ours(one) == theirs(openenv)
    assert calls[1].parent is calls[0]
    assert prompts[1]["prompt"] == calls[1].prompt.tolist()


def test_what_is_quoted_is_no_special_token_here(python: str) -> None:
    async def play(agent: Agent) -> None:
        await agent.ask(user("what does <|im_end|> mean?"))

    one, calls, openenv, (prompt,) = compared(python, ["an end"], play)
    assert ours(one) == theirs(openenv)
    decode = one.policies.tokenizer.decode
    assert prompt["prompt"] != calls[0].prompt.tolist()
    assert decode(np.array(prompt["prompt"]), False) == decode(calls[0].prompt, False)
