"""How an agent says the same in each dialect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from astraflow_gateway.dialects.anthropic.messages import Messages
from astraflow_gateway.dialects.dialect import Dialect
from astraflow_gateway.dialects.openai.chat_completions import ChatCompletions
from astraflow_gateway.dialects.responses.responses import Responses
from astraflow_gateway.episode import Episode

History = list[dict[str, Any]]
REWRITTEN = " (sic)"


class Speaker(Protocol):
    """An agent of one dialect; what it remembers of a conversation is a list of that dialect's entries."""

    dialect: Dialect

    def user(self, text: str) -> History:
        """A question."""

    def body(self, history: History, tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The request for the next reply; ``tools`` are in the form of chat completions."""

    def reply(
        self, whole: dict[str, Any], reasons: bool, rewrites: bool
    ) -> tuple[History, list[str]]:
        """What is remembered of a reply, with or without its reasoning; the ids of its calls."""

    def results(self, ids: Sequence[str], text: str) -> History:
        """The results of calls."""


async def asked(
    speaker: Speaker, episode: Episode, history: History, tools: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """The reply to ``history``."""
    body = msgspec.json.encode(speaker.body(history, tools))
    exchange = speaker.dialect.read(body, episode)
    answer = await episode.answer(exchange.wanted)
    assert b"".join(exchange.events(answer))  # a stream says it too, and changes nothing
    return exchange.whole(answer)


class ChatSpeaker:
    """Chat completions."""

    dialect = ChatCompletions()

    def user(self, text: str) -> History:
        return [{"role": "user", "content": text}]

    def body(self, history: History, tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {"messages": history, "tools": tools}

    def reply(
        self, whole: dict[str, Any], reasons: bool, rewrites: bool
    ) -> tuple[History, list[str]]:
        message = dict(whole["choices"][0]["message"])
        if not reasons:
            message.pop("reasoning_content", None)
        if rewrites:
            message["content"] = (message["content"] or "") + REWRITTEN
        return [message], [call["id"] for call in message.get("tool_calls", ())]

    def results(self, ids: Sequence[str], text: str) -> History:
        return [{"role": "tool", "tool_call_id": id, "content": text} for id in ids]


class MessagesSpeaker:
    """Anthropic messages."""

    dialect = Messages()

    def user(self, text: str) -> History:
        return [{"role": "user", "content": text}]

    def body(self, history: History, tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
        functions = [tool["function"] for tool in tools]
        said = [
            {"name": each["name"], "description": each["description"], "input_schema": each["parameters"]}
            for each in functions
        ]  # fmt: skip
        thinking = {"type": "adaptive"}
        return {"messages": history, "tools": said, "max_tokens": 10_000, "thinking": thinking}

    def reply(
        self, whole: dict[str, Any], reasons: bool, rewrites: bool
    ) -> tuple[History, list[str]]:
        blocks = [block for block in whole["content"] if reasons or block["type"] != "thinking"]
        if rewrites:
            blocks.append({"type": "text", "text": REWRITTEN})
        ids = [block["id"] for block in blocks if block["type"] == "tool_use"]
        return [{"role": "assistant", "content": blocks}], ids

    def results(self, ids: Sequence[str], text: str) -> History:
        blocks = [{"type": "tool_result", "tool_use_id": id, "content": text} for id in ids]
        return [{"role": "user", "content": blocks}]


class ResponsesSpeaker:
    """Responses, of which the agent keeps all items by itself."""

    dialect = Responses()

    def user(self, text: str) -> History:
        return [{"role": "user", "content": [{"type": "input_text", "text": text}]}]

    def body(self, history: History, tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
        said = [{"type": "function", **tool["function"]} for tool in tools]
        return {"input": history, "tools": said}

    def reply(
        self, whole: dict[str, Any], reasons: bool, rewrites: bool
    ) -> tuple[History, list[str]]:
        items = [item for item in whole["output"] if reasons or item["type"] != "reasoning"]
        if rewrites:
            said = "".join(
                item["content"][0]["text"] for item in items if item["type"] == "message"
            )
            part = {"type": "output_text", "text": said + REWRITTEN}
            message = {"type": "message", "role": "assistant", "content": [part]}
            calls = [item for item in items if item["type"] == "function_call"]
            thoughts = [item for item in items if item["type"] == "reasoning"]
            items = [*thoughts, message, *calls]
        return items, [item["call_id"] for item in items if item["type"] == "function_call"]

    def results(self, ids: Sequence[str], text: str) -> History:
        return [{"type": "function_call_output", "call_id": id, "output": text} for id in ids]


class KeptResponsesSpeaker(ResponsesSpeaker):
    """Responses that the server keeps: the last one is remembered, and what came after it."""

    def body(self, history: History, tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
        last = max((at for at, each in enumerate(history) if "kept" in each), default=-1)
        previous = {"previous_response_id": history[last]["kept"]} if last >= 0 else {}
        return {**super().body(history[last + 1 :], tools), **previous}

    def reply(
        self, whole: dict[str, Any], reasons: bool, rewrites: bool
    ) -> tuple[History, list[str]]:
        _, ids = super().reply(whole, reasons, False)
        return [{"kept": whole["id"]}], ids  # what the server keeps cannot be rewritten


SPEAKERS: tuple[Speaker, ...] = (
    ChatSpeaker(),
    MessagesSpeaker(),
    ResponsesSpeaker(),
    KeptResponsesSpeaker(),
)
