"""The body of a request for a chat completion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from astraflow_gateway.chat.messages import Message, tool_call
from astraflow_gateway.dialects.bodies import (
    Names,
    choices_of,
    chosen_tool,
    most_tokens,
    parsed,
    refuse_top_logprobs,
    refuse_unavailable,
    sampling_of,
    stops_of,
    tools_of,
)
from astraflow_gateway.dialects.content import shown_content, text_of
from astraflow_gateway.dialects.openai.provider import StreamOptions
from astraflow_gateway.requests import BadRequest, ModelRequest

_UNAVAILABLE = (
    "response_format", "functions", "logit_bias", "best_of", "guided_json", "guided_regex", "guided_choice",
    "guided_grammar", "structured_outputs",
)  # fmt: skip


class _Function(msgspec.Struct):
    name: str
    arguments: str = "{}"


class _Call(msgspec.Struct):
    function: _Function
    id: str = ""
    type: str = "function"


class _Said(msgspec.Struct):
    """A message of the history."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: Any = None
    refusal: str | None = None


class ChatBody(msgspec.Struct):
    """The fields that are read; an agent may send others."""

    messages: list[_Said]
    model: str = ""
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    return_token_ids: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    response_format: Any = None
    functions: Any = None
    logit_bias: Any = None
    best_of: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    structured_outputs: Any = None


def read(body: bytes) -> tuple[ChatBody, ModelRequest]:
    """The request in ``body``; :class:`BadRequest` names the field that is wrong."""
    asked = parsed(body, ChatBody)
    if not asked.messages:
        raise BadRequest("messages is empty; at least one is needed", param="messages")
    refuse_top_logprobs(asked.top_logprobs)
    refuse_unavailable(asked, _UNAVAILABLE)
    tools = tools_of(asked.tools or [])
    most = asked.max_tokens if asked.max_completion_tokens is None else asked.max_completion_tokens
    request = ModelRequest(
        model=asked.model,
        messages=_messages(asked.messages),
        tools=tools,
        tool_choice=chosen_tool(asked.tool_choice, {each["function"]["name"] for each in tools}),
        max_tokens=most_tokens(most),
        stop=stops_of(asked.stop),
        n=choices_of(asked.n),
        sampling=sampling_of(asked),
    )
    return asked, request


def _messages(said: Sequence[_Said]) -> list[Message]:
    messages: list[Message] = []
    names = Names()
    for at, each in enumerate(said):
        role = {"developer": "system", "function": "tool"}.get(each.role, each.role)
        read = shown_content if role in ("user", "tool") else text_of
        message: Message = {
            "role": role,
            "content": read(each.content, f"messages[{at}].content"),
        }
        if each.role == "assistant":
            if each.reasoning_content:
                message["reasoning_content"] = each.reasoning_content
            if each.tool_calls:
                message["tool_calls"] = [
                    tool_call(call.id, call.function.name, call.function.arguments)
                    for call in each.tool_calls
                ]
                names.learn(message)
        elif message["role"] == "tool":
            message["tool_call_id"] = each.tool_call_id or ""
            message["name"] = each.name or names.of(each.tool_call_id)
        messages.append(message)
    return messages
