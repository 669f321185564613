"""The message that answers a request, whole or in events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import xxhash

from astraflow_gateway.dialects.dialect import Json
from astraflow_gateway.requests import Choice, ModelAnswer

_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def whole(answer: ModelAnswer, shows_thinking: bool) -> Json:
    """The reply that is not streamed."""
    (choice,) = answer.choices
    return {
        **_head(answer),
        "content": _blocks(choice, shows_thinking),
        **_ending(choice),
        "usage": {**_read(answer), "output_tokens": answer.sampled},
    }


def events(answer: ModelAnswer, shows_thinking: bool) -> Iterator[Json]:
    """The events of a streamed reply, each with the name in ``type``. The engine gives a reply as a whole, so each block
    is one delta."""
    (choice,) = answer.choices
    start = {
        **_head(answer),
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {**_read(answer), "output_tokens": 0},
    }
    yield {"type": "message_start", "message": start}
    yield {"type": "ping"}
    for index, block in enumerate(_blocks(choice, shows_thinking)):
        empty, deltas = _in_deltas(block)
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    yield {
        "type": "message_delta",
        "delta": _ending(choice),
        "usage": {"output_tokens": answer.sampled},
    }
    yield {"type": "message_stop"}


def _head(answer: ModelAnswer) -> Json:
    return {
        "id": f"msg_{answer.id}",
        "type": "message",
        "role": "assistant",
        "model": answer.policy,
    }


def _read(answer: ModelAnswer) -> dict[str, int]:
    # The gateway does not know what an engine has cached.
    cached = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    return {"input_tokens": len(answer.prompt), **cached}


def _ending(choice: Choice) -> Json:
    if choice.finish == "stop" and choice.stopped_by:
        return {"stop_reason": "stop_sequence", "stop_sequence": choice.stopped_by}
    return {"stop_reason": _REASONS[choice.finish], "stop_sequence": None}


def _blocks(choice: Choice, shows_thinking: bool) -> list[Json]:
    reply = choice.reply
    blocks: list[Json] = []
    if reply.reasoning and shows_thinking:
        signature = xxhash.xxh3_128_hexdigest(reply.reasoning.encode("utf-8", "replace"))
        blocks.append({"type": "thinking", "thinking": reply.reasoning, "signature": signature})
    if reply.content:
        blocks.append({"type": "text", "text": reply.content})
    for call in reply.tool_calls:
        arguments = json.loads(call.arguments)
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": arguments})
    return blocks


def _in_deltas(block: Json) -> tuple[Json, list[dict[str, Any]]]:
    """A block as it begins, and what is then added to it."""
    match block["type"]:
        case "text":
            return {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]
        case "thinking":
            return {**block, "thinking": "", "signature": ""}, [
                {"type": "thinking_delta", "thinking": block["thinking"]},
                {"type": "signature_delta", "signature": block["signature"]},
            ]
        case _:
            arguments = json.dumps(block["input"])
            return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": arguments}]
