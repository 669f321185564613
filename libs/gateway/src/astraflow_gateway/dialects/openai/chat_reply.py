"""The reply to a request for a chat completion, whole or in chunks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from astraflow_core.protocols.workflow import Tokenizer
from astraflow_gateway.chat.messages import ToolCall
from astraflow_gateway.dialects.openai.chat_body import ChatBody
from astraflow_gateway.dialects.openai.provider import usage
from astraflow_gateway.requests import Choice, ModelAnswer


def whole(asked: ChatBody, answer: ModelAnswer, tokenizer: Tokenizer) -> dict[str, Any]:
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
        "id": f"chatcmpl-{answer.id}",
        "object": "chat.completion",
        "created": answer.created,
        "model": answer.policy,
        "choices": choices,
        "usage": usage(answer),
        **prompt,
    }


def chunks(asked: ChatBody, answer: ModelAnswer, tokenizer: Tokenizer) -> Iterator[dict[str, Any]]:
    """The chunks of a streamed reply. The engine gives a reply as a whole, so its text is one chunk."""
    head = {
        "id": f"chatcmpl-{answer.id}",
        "object": "chat.completion.chunk",
        "created": answer.created,
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
    return {"content": token_logprobs(choice, tokenizer), "refusal": None}


def token_logprobs(choice: Choice, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """The text and the log-prob of each token that was sampled for ``choice``."""
    if choice.result is None:
        return []
    found = []
    for at, logprob in enumerate(choice.result.logprobs.tolist()):
        token = choice.result.tokens[at : at + 1]
        text = tokenizer.decode(np.asarray(token), skip_special=False)
        said = list(text.encode("utf-8", "replace"))
        found.append({"token": text, "logprob": logprob, "bytes": said, "top_logprobs": []})
    return found
