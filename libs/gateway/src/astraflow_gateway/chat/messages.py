"""Chat messages as this package keeps them, whatever the dialect in which they came."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import xxhash

from astraflow_core.protocols.workflow import Messages, Tokenizer, Tools

Message = dict[str, Any]
"""``role``; ``content``, text, or a list of parts where an environment or a tool shows an image; of an assistant also ``reasoning_content`` and ``tool_calls``, of a tool
``tool_call_id`` and ``name``. Arguments of a tool call are an object, or text if they are not one."""


class ChatModel(Protocol):
    """What of a policy's engine this package needs."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    def chat_text(
        self, messages: Messages, add_generation_prompt: bool = True, tools: Tools = ()
    ) -> str: ...


MOST_DEPTH = 50
_DIGESTS = msgspec.json.Encoder(order="deterministic")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model made. ``arguments`` is JSON text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ModelReply:
    """What the model said, taken apart."""

    content: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()

    @property
    def message(self) -> Message:
        """As a message of the history."""
        message: Message = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [
                tool_call(call.id, call.name, call.arguments) for call in self.tool_calls
            ]
        return message


def tool_call(id: str, name: str, arguments: str) -> dict[str, Any]:
    """A tool call within a message. Templates print the arguments as JSON, so that they want the object."""
    return {
        "id": id,
        "type": "function",
        "function": {"name": name, "arguments": _object(arguments)},
    }


def _object(arguments: str) -> Any:
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) and not too_deep(value) else arguments


def too_deep(value: Any) -> bool:
    """Whether JSON is nested more than :data:`MOST_DEPTH` deep, so that templates, which recurse, may fail on it."""
    level = [value]
    for _ in range(MOST_DEPTH):
        containers = [each for each in level if isinstance(each, (dict, list))]
        level = [
            inner
            for each in containers
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return False
    return any(isinstance(each, (dict, list)) for each in level)


def digests(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[int]:
    """The digest of ``tools`` and the first i messages, for i from 0 to all. Ids of tool calls do not count, nor
    does reasoning, which most agents leave out when they send a reply back."""
    found = [_digest(0, tools)]
    for message in messages:
        found.append(_digest(found[-1], _essence(message)))
    return found


def _essence(message: Mapping[str, Any]) -> Any:
    calls = [
        (call["function"]["name"], _plain_numbers(call["function"]["arguments"]))
        for call in message.get("tool_calls", ())
    ]
    return (message["role"], message["content"], calls, message.get("name", ""))


def _plain_numbers(value: Any) -> Any:
    """``value`` with whole numbers for floats that are whole: an agent in JavaScript sends 1.0 back as 1."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _plain_numbers(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain_numbers(each) for each in value]
    return value


def _digest(before: int, value: Any) -> int:
    return xxhash.xxh3_64_intdigest(_DIGESTS.encode(value), seed=before)
