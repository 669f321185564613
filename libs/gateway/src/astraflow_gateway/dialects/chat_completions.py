"""OpenAI chat completions: ``POST /v1/chat/completions``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec
import numpy as np

from astraflow_core.protocols.workflow import Tokenizer
from astraflow_gateway.chat.messages import Message, ToolCall, tool_call
from astraflow_gateway.dialects.bodies import (
    Names,
    most_tokens,
    parsed,
    sampling_of,
    stops_of,
    text_of,
    tools_of,
)
from astraflow_gateway.requests import BadRequest, Choice, ModelAnswer, ModelRequest

MOST_CHOICES = 64
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


class _StreamOptions(msgspec.Struct):
    include_usage: bool = False


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
    stream_options: _StreamOptions | None = None
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
    if asked.top_logprobs:
        raise BadRequest(
            "top_logprobs is not available: only the log-prob of each sampled token is (logprobs)",
            param="top_logprobs",
        )
    _refuse_unavailable(asked)
    n = 1 if asked.n is None else asked.n
    if not 1 <= n <= MOST_CHOICES:
        raise BadRequest(f"n is {n}; expected 1 to {MOST_CHOICES}", param="n")
    tools = tools_of(asked.tools or [])
    most = asked.max_tokens if asked.max_completion_tokens is None else asked.max_completion_tokens
    request = ModelRequest(
        model=asked.model,
        messages=_messages(asked.messages),
        tools=tools,
        tool_choice=_choice(asked.tool_choice, {each["function"]["name"] for each in tools}),
        max_tokens=most_tokens(most),
        stop=stops_of(asked.stop),
        n=n,
        sampling=sampling_of(asked),
    )
    return asked, request


def _refuse_unavailable(asked: ChatBody) -> None:
    """An agent that relies on one of these would take free text for what it wanted."""
    for name in _UNAVAILABLE:
        value = getattr(asked, name)
        harmless = value in (None, {}, []) or (name == "best_of" and value == 1)
        if not harmless and value != {"type": "text"}:
            raise BadRequest(f"{name} is not available here: the model answers freely", param=name)


def _messages(said: Sequence[_Said]) -> list[Message]:
    messages: list[Message] = []
    names = Names()
    for at, each in enumerate(said):
        message: Message = {
            "role": {"developer": "system", "function": "tool"}.get(each.role, each.role),
            "content": text_of(each.content, f"messages[{at}].content"),
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


def _choice(wanted: Any, names: set[str]) -> str:
    if isinstance(wanted, dict):
        function = wanted.get("function", wanted)
        name = function.get("name") if isinstance(function, dict) else function
        if name not in names:
            raise BadRequest(
                f"tool_choice names {name!r}, which is not one of the tools", param="tool_choice"
            )
        return str(name)
    if wanted not in (None, "auto", "none", "required"):
        raise BadRequest(
            f"tool_choice is {wanted!r}; expected auto, none, required or a function",
            param="tool_choice",
        )
    if wanted == "required" and not names:
        raise BadRequest("tool_choice is required and there are no tools", param="tool_choice")
    return wanted or "auto"


def whole(asked: ChatBody, answer: ModelAnswer, tokenizer: Tokenizer, id: str) -> dict[str, Any]:
    """The reply that is not streamed."""
    choices = [
        {
            "index": index,
            "message": {
                "role": "assistant",
                "content": choice.reply.content or (None if choice.reply.tool_calls else ""),
                **_reasoning(choice),
                **_calls(choice),
            },
            "logprobs": _logprobs(choice, tokenizer) if asked.logprobs else None,
            "finish_reason": choice.finish,
            **_token_ids(asked, choice),
        }
        for index, choice in enumerate(answer.choices)
    ]
    prompt = {"prompt_token_ids": answer.prompt.tolist()} if asked.return_token_ids else {}
    return {
        "id": id,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": answer.policy,
        "choices": choices,
        "usage": usage(answer),
        **prompt,
    }


def chunks(
    asked: ChatBody, answer: ModelAnswer, tokenizer: Tokenizer, id: str
) -> Iterator[dict[str, Any]]:
    """The chunks of a streamed reply. The engine gives a reply as a whole, so its text is one chunk."""
    head = {
        "id": id,
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": answer.policy,
    }
    prompt = {"prompt_token_ids": answer.prompt.tolist()} if asked.return_token_ids else {}
    for index, choice in enumerate(answer.choices):
        reply = choice.reply
        yield {**head, "choices": [_delta(index, {"role": "assistant", "content": ""})], **prompt}
        prompt = {}
        if reply.reasoning:
            yield {**head, "choices": [_delta(index, _reasoning(choice))]}
        body = {"content": reply.content} if reply.content else {}
        said = _delta(index, body)
        if asked.logprobs:
            said["logprobs"] = _logprobs(choice, tokenizer)
        yield {**head, "choices": [{**said, **_token_ids(asked, choice)}]}
        for place, call in enumerate(reply.tool_calls):
            calls = [{"index": place, **_call(call)}]
            yield {**head, "choices": [_delta(index, {"tool_calls": calls})]}
        yield {**head, "choices": [{**_delta(index, {}), "finish_reason": choice.finish}]}
    if asked.stream_options is not None and asked.stream_options.include_usage:
        yield {**head, "choices": [], "usage": usage(answer)}


def error(refused: BadRequest) -> dict[str, Any]:
    """An error in OpenAI's shape."""
    kind = "server_error" if refused.status >= 500 else "invalid_request_error"
    return {
        "error": {
            "message": refused.message,
            "type": kind,
            "param": refused.param or None,
            "code": refused.kind,
        }
    }


def usage(answer: ModelAnswer) -> dict[str, int]:
    """Numbers of tokens."""
    prompt, sampled = len(answer.prompt), answer.sampled
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
    }


def _delta(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def _reasoning(choice: Choice) -> dict[str, Any]:
    return {"reasoning_content": choice.reply.reasoning} if choice.reply.reasoning else {}


def _calls(choice: Choice) -> dict[str, Any]:
    calls = choice.reply.tool_calls
    return {"tool_calls": [_call(call) for call in calls]} if calls else {}


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _token_ids(asked: ChatBody, choice: Choice) -> dict[str, Any]:
    if not asked.return_token_ids or choice.result is None:
        return {}
    return {"token_ids": choice.result.tokens.tolist()}


def _logprobs(choice: Choice, tokenizer: Tokenizer) -> dict[str, Any] | None:
    if choice.result is None:
        return None
    content = []
    for at, logprob in enumerate(choice.result.logprobs.tolist()):
        token = choice.result.tokens[at : at + 1]
        text = tokenizer.decode(np.asarray(token), skip_special=False)
        said = list(text.encode("utf-8", "replace"))
        content.append({"token": text, "logprob": logprob, "bytes": said, "top_logprobs": []})
    return {"content": content, "refusal": None}
