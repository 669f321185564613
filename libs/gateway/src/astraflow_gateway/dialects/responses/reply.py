"""The response that answers a request, whole or in events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from astraflow_core.protocols.workflow import Tokenizer
from astraflow_gateway.chat.replies import reasoning_tokens
from astraflow_gateway.dialects.dialect import Json
from astraflow_gateway.dialects.openai.chat_reply import token_logprobs
from astraflow_gateway.dialects.responses.body import Asked
from astraflow_gateway.dialects.responses.tools import split_names
from astraflow_gateway.requests import ModelAnswer


def whole(asked: Asked, answer: ModelAnswer, tokenizer: Tokenizer) -> Json:
    """The reply that is not streamed."""
    (choice,) = answer.choices
    cut = choice.finish == "length"
    status = "incomplete" if cut else "completed"
    prompt, sampled = len(answer.prompt), answer.sampled
    thought = reasoning_tokens(choice.reply, choice.result, tokenizer) if choice.result else 0
    return {
        **_head(asked, answer),
        "status": status,
        "completed_at": None if cut else answer.created,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": _output(asked, answer, tokenizer, status),
        "usage": {
            "input_tokens": prompt,
            # The gateway does not know what an engine has cached.
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": sampled,
            "output_tokens_details": {"reasoning_tokens": thought},
            "total_tokens": prompt + sampled,
        },
    }


def events(asked: Asked, answer: ModelAnswer, response: Json) -> Iterator[Json]:
    """The events of the streamed ``response``, each with its name in ``type``. The engine gives a reply as a whole, so
    each text is one delta."""
    begun = {**_head(asked, answer), "status": "in_progress", "output": []}
    told: list[Json] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
    ]
    for index, item in enumerate(response["output"]):
        told += [{**each, "output_index": index} for each in _events_of(item)]
    told.append({"type": f"response.{response['status']}", "response": response})
    for number, each in enumerate(told):
        yield {**each, "sequence_number": number}


def _head(asked: Asked, answer: ModelAnswer) -> Json:
    return {
        "id": f"resp_{answer.id}",
        "object": "response",
        "created_at": answer.created,
        "model": answer.policy,
        "error": None,
        "incomplete_details": None,
        "instructions": asked.instructions,
        "metadata": asked.metadata or {},
        "parallel_tool_calls": asked.parallel_tool_calls is not False,
        "tool_choice": asked.tool_choice or "auto",
        "tools": [_echoed(tool) for tool in asked.tools or []],
        "max_output_tokens": asked.max_output_tokens,
        "previous_response_id": asked.previous_response_id,
        "text": {"format": {"type": "text"}},
        "truncation": "disabled",
    }


def _echoed(tool: Json) -> Json:
    if tool["type"] == "namespace":
        return {"description": "", **tool}
    return {"parameters": {}, "strict": None, **tool}


def _output(
    asked: Asked, answer: ModelAnswer, tokenizer: Tokenizer, status: str
) -> list[dict[str, Any]]:
    (choice,) = answer.choices
    reply, items = choice.reply, []
    if reply.reasoning:
        text = {"type": "reasoning_text", "text": reply.reasoning}
        items.append(
            {"id": f"rs_{answer.id}", "type": "reasoning", "summary": [], "content": [text]}
        )
    if reply.content or not reply.tool_calls:
        logprobs = token_logprobs(choice, tokenizer) if asked.wants_logprobs else []
        said = {
            "type": "output_text",
            "text": reply.content,
            "annotations": [],
            "logprobs": logprobs,
        }
        items.append(
            {
                "id": f"msg_{answer.id}",
                "type": "message",
                "role": "assistant",
                "status": status,
                "content": [said],
            }
        )
    namespaces = split_names(asked.tools or [])
    for number, call in enumerate(reply.tool_calls):
        namespace, name = namespaces.get(call.name, ("", call.name))
        items.append(
            {
                "id": f"fc_{answer.id}_{number}",
                "type": "function_call",
                "status": "completed",
                "call_id": call.id,
                "name": name,
                "arguments": call.arguments,
                **({"namespace": namespace} if namespace else {}),
            }
        )
    return items


def _events_of(item: Json) -> Iterator[Json]:
    """Those of an item, without the place of the item."""
    kind, id = item["type"], item["id"]
    if kind == "function_call":
        empty = {**item, "arguments": "", "status": "in_progress"}
        yield {"type": "response.output_item.added", "item": empty}
        arguments = item["arguments"]
        name = "response.function_call_arguments"
        yield {"type": f"{name}.delta", "item_id": id, "delta": arguments}
        yield {"type": f"{name}.done", "item_id": id, "arguments": arguments}
    else:
        begun = {"status": "in_progress"} if kind == "message" else {}
        yield {"type": "response.output_item.added", "item": {**item, "content": [], **begun}}
        for index, part in enumerate(item["content"]):
            for each in _events_of_part(part):
                yield {**each, "item_id": id, "content_index": index}
    yield {"type": "response.output_item.done", "item": item}


def _events_of_part(part: Json) -> Iterator[Json]:
    spoken = part["type"] == "output_text"
    name = "response.output_text" if spoken else "response.reasoning_text"
    # Events of text have the log-probs without the bytes.
    kept = ("token", "logprob", "top_logprobs")
    short = [{key: each[key] for key in kept} for each in part.get("logprobs", ())]
    logprobs = {"logprobs": short} if spoken else {}
    empty = {**part, "text": "", **({"logprobs": []} if spoken else {})}
    yield {"type": "response.content_part.added", "part": empty}
    if part["text"]:
        yield {"type": f"{name}.delta", "delta": part["text"], **logprobs}
    yield {"type": f"{name}.done", "text": part["text"], **logprobs}
    yield {"type": "response.content_part.done", "part": part}
