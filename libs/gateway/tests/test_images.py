"""Images in the turns of a conversation: each is passed on once, and the sequence records its position."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from gateway_agents import Agent, agent_of

from astraflow_core.errors import WorkflowError
from astraflow_core.types import GenerateRequest, GenerateResult, Images, RunInfo, Sampling
from astraflow_gateway.chat.messages import ToolCall
from astraflow_gateway.conversation import Conversation, Episodes
from astraflow_gateway.episode import Budget, Episode
from astraflow_testing.images.pictures import picture
from astraflow_testing.scripted_policies import PairsTokenizer, ScriptedPolicies
from astraflow_wire.images.model import ImageModel

IMAGE = "<image>"
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{% if p.type == 'image' %}<image>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
TOKENIZER = PairsTokenizer(TEMPLATE, "<end>", [IMAGE])
MODEL = ImageModel(token=int(TOKENIZER.encode(IMAGE)[0]), length=3)
RED, GREEN, BLUE = (picture(seed) for seed in (1, 2, 3))
CALL = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}},
}  # fmt: skip


def part(data: bytes) -> dict[str, Any]:
    url = "data:image/png;base64," + base64.b64encode(data).decode()
    return {"type": "image_url", "image_url": {"url": url}}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


class SeeingPolicies(ScriptedPolicies):
    """Policies that read images, and keep which ones they saw."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.seen: list[tuple[GenerateRequest, Images]] = []
        self.handles["p"].images = MODEL

    async def answered(self, policy: str, request: GenerateRequest) -> GenerateResult:
        self.seen.append((request, request.images))
        return await super().answered(policy, request)


def conversation(
    policies: ScriptedPolicies, *messages: dict[str, Any], **keys: Any
) -> tuple[Episode, Conversation]:
    run = RunInfo("r", 0, 1, 1, ("p",), Path("."))
    episode = Episodes(run, Budget(100, 10_000)).begin(policies.engines())
    return episode, Conversation(episode, "p", list(messages), **keys)


def policies(*said: str) -> SeeingPolicies:
    return SeeingPolicies(["p"], (), {"p": said}, Sampling(max_tokens=400), TOKENIZER)


def placed(request: GenerateRequest, images: Images) -> list[bytes]:
    """The files in their order; each stands where its placeholders are, and no others are there."""
    places = [place for image in images for place in range(image.start, image.end)]
    assert [n for n, token in enumerate(request.prompt.tolist()) if token == MODEL.token] == places
    return [bytes(image.data) for image in images]


def test_several_images_in_several_turns_are_one_sequence() -> None:
    used = policies(CALL, "it is green", "and blue")

    async def play() -> None:
        episode, chat = conversation(
            used,
            {"role": "user", "content": [text("what is "), part(RED), text("?")]},
            tools=[TOOL],
        )
        (call,) = (await chat.reply()).reply.tool_calls
        chat.answer_tool(call, [text("here: "), part(GREEN)])
        await chat.reply()
        chat.append({"role": "user", "content": [part(RED), text("or"), part(BLUE)]})
        await chat.reply()
        assert episode.outcomes == {"first": 1, "continued": 2}
        (sequence,) = episode.sequences()
        assert [bytes(image.data) for image in sequence.images] == [RED, GREEN, RED, BLUE]
        for image in sequence.images:
            tokens = sequence.tokens[image.start : image.end]
            assert (tokens == MODEL.token).all() and image.length == 3
            assert not sequence.loss_mask[image.start : image.end].any()
        assert int(sequence.loss_mask.sum()) == sum(len(t.call.result.tokens) for t in chat.turns)

    asyncio.run(play())
    found = [placed(*each) for each in used.seen]
    assert found == [[RED], [RED, GREEN], [RED, GREEN, RED, BLUE]]
    assert "<tool_response>\nhere: " in TOKENIZER.decode(used.seen[1][0].prompt, skip_special=False)


def test_a_conversation_that_begins_anew_shows_them_again() -> None:
    used = policies("one", "two")

    async def play() -> None:
        episode, chat = conversation(used, {"role": "user", "content": [part(RED)]})
        await chat.reply()
        chat.messages[-1]["content"] = "another word"
        chat.append({"role": "user", "content": [part(GREEN)]})
        await chat.reply()
        assert episode.outcomes == {"first": 1, "history": 1}
        one, other = episode.sequences()
        assert [bytes(image.data) for image in one.images] == [RED]
        assert [bytes(image.data) for image in other.images] == [RED, GREEN]

    asyncio.run(play())
    assert [placed(*each) for each in used.seen] == [[RED], [RED, GREEN]]


def test_the_same_tokens_with_another_image_are_another_conversation() -> None:
    """Two requests of an agent that differ in nothing but the picture: neither goes on from the other."""
    used = policies("same", "same", "x")

    async def play() -> None:
        episode, first = conversation(used, {"role": "user", "content": [part(RED)]})
        second = Conversation(episode, "p", [{"role": "user", "content": [part(GREEN)]}])
        await first.reply()
        await second.reply()
        (one, two), graph = episode.graph.calls, episode.graph
        assert one.tokens.tolist() == two.tokens.tolist()
        assert graph._parent("p", one.tokens, one.images) is one
        assert graph._parent("p", one.tokens, two.images) is two
        assert graph._parent("p", one.tokens, ()) is None

    asyncio.run(play())


def test_a_policy_that_reads_none_and_bad_parts_are_refused() -> None:
    async def play() -> None:
        _, chat = conversation(policies(), {"role": "user", "content": [{"type": "audio"}]})
        with pytest.raises(WorkflowError, match="message 0: a part of content is"):
            await chat.reply()
        blind = policies()
        blind.handles["p"].images = None
        _, chat = conversation(blind, {"role": "user", "content": [part(RED)]})
        with pytest.raises(WorkflowError, match=r"reads none: set images = true in \[policies.p\]"):
            await chat.reply()
        _, chat = conversation(policies("a"), {"role": "user", "content": [text("a"), text("b")]})
        assert (await chat.reply()).reply.content == "a"
        chat.answer_tool(ToolCall("1", "look", "{}"), "plain")

    asyncio.run(play())


def anthropic_part(data: bytes) -> dict[str, Any]:
    source = {
        "type": "base64", "media_type": "image/png", "data": base64.b64encode(data).decode(),
    }  # fmt: skip
    return {"type": "image", "source": source}


def responses_part(data: bytes) -> dict[str, Any]:
    return {"type": "input_image", "image_url": part(data)["image_url"]["url"], "detail": "auto"}


async def chat_turns(agent: Agent) -> None:
    said = [{"role": "user", "content": [text("what is "), part(RED)]}]
    tools: dict[str, Any] = {"tools": [TOOL]}
    message = (await agent.chat(*said, **tools))["choices"][0]["message"]
    call = message["tool_calls"][0]
    shown = {
        "role": "tool", "tool_call_id": call["id"], "content": [text("here: "), part(GREEN)],
    }  # fmt: skip
    await agent.chat(*said, message, shown, **tools)


async def messages_turns(agent: Agent) -> None:
    said: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "what is "}, anthropic_part(RED)]}
    ]
    tool = {"name": "look", "input_schema": TOOL["function"]["parameters"]}
    body = {"model": "p", "max_tokens": 400, "tools": [tool]}
    reply = (await agent.post("/v1/messages", {**body, "messages": said})).json()
    (call,) = [block for block in reply["content"] if block["type"] == "tool_use"]
    result = {
        "type": "tool_result", "tool_use_id": call["id"],
        "content": [{"type": "text", "text": "here: "}, anthropic_part(GREEN)],
    }  # fmt: skip
    said += [
        {"role": "assistant", "content": reply["content"]},
        {"role": "user", "content": [result]},
    ]
    counted = await agent.post(
        "/v1/messages/count_tokens", {"model": "p", "tools": [tool], "messages": said}
    )
    reply = (await agent.post("/v1/messages", {**body, "messages": said})).json()
    assert counted.json()["input_tokens"] == reply["usage"]["input_tokens"]


async def responses_turns(agent: Agent) -> None:
    asked = {
        "role": "user",
        "content": [{"type": "input_text", "text": "what is "}, responses_part(RED)],
    }
    tool = {"type": "function", **TOOL["function"]}
    body = {"model": "p", "tools": [tool]}
    reply = (await agent.post("/v1/responses", {**body, "input": [asked]})).json()
    (call,) = [item for item in reply["output"] if item["type"] == "function_call"]
    shown = {
        "type": "function_call_output", "call_id": call["call_id"],
        "output": [{"type": "input_text", "text": "here: "}, responses_part(GREEN)],
    }  # fmt: skip
    more = {**body, "previous_response_id": reply["id"], "input": [shown]}
    assert (await agent.post("/v1/responses", more)).status_code == 200


@pytest.mark.parametrize("turns", [chat_turns, messages_turns, responses_turns])
def test_an_agent_shows_images_in_each_dialect(turns: Callable[[Agent], Awaitable[None]]) -> None:
    used = policies(CALL, "it is green")

    async def play() -> None:
        async with agent_of(used) as agent:
            await turns(agent)
            (sequence,) = agent.episode.sequences()
            assert [bytes(image.data) for image in sequence.images] == [RED, GREEN]
            assert agent.episode.outcomes == {"first": 1, "continued": 1}

    asyncio.run(play())
    assert [placed(*each) for each in used.seen] == [[RED], [RED, GREEN]]
    assert "what is <image>" in TOKENIZER.decode(used.seen[0][0].prompt, skip_special=False)


def test_an_agent_gets_the_reason_why_an_image_cannot_be_shown() -> None:
    at = {"type": "image_url", "image_url": {"url": "https://example.org/secret.png"}}
    torn = part(RED[:40])

    async def play() -> None:
        async with agent_of(policies()) as agent:
            for shown, why in ((at, "nothing is fetched from the network"), (torn, "content: ")):
                body = {"model": "p", "messages": [{"role": "user", "content": [shown]}]}
                status, error = await agent.refused(body)
                assert status == 400 and why in error["message"], error
                assert error["param"] == "messages[0].content" and "secret" not in error["message"]
        blind = policies()
        blind.handles["p"].images = None
        async with agent_of(blind) as agent:
            body = {"model": "p", "messages": [{"role": "user", "content": [part(RED)]}]}
            status, error = await agent.refused(body)
            assert status == 400 and "images = true" in error["message"]
            assert agent.episode.failure is None
            status, error = await agent.refused(
                {"model": "p", "messages": [{"role": "system", "content": [part(RED)]}]}
            )
            assert status == 400 and "expected text" in error["message"]

    asyncio.run(play())
