"""What environments share that read replies and calls of tools: tags in a text, tools, and answers to calls."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from astraflow_core.types import Action

Messages = tuple[Mapping[str, Any], ...]


def tool(name: str, description: str, **parameters: dict[str, Any]) -> dict[str, Any]:
    """A tool in OpenAI's form whose parameters, JSON schemas, are all required."""
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": parameters,
                "required": list(parameters),
                "additionalProperties": False,
            },
        },
    }


def said(action: Action | None, text: str) -> Messages:
    """``text`` as the answer to an action: to its first call of a tool, or as a user's message. A turn is one move, so
    further calls are answered, which a conversation needs, and not made."""
    if action is None or not action.calls:
        return ({"role": "user", "content": text},)
    texts = [text] + ["Not done: one call in a turn."] * (len(action.calls) - 1)
    return tuple(
        {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": one}
        for call, one in zip(action.calls, texts, strict=True)
    )


def first_tagged(text: str, *names: str) -> tuple[str, str] | None:
    """``(name, content)`` of the first ``<name>content</name>`` of these names; an end that is missing, as where
    sampling stopped at it, counts as one."""
    found = re.search(
        rf"<({'|'.join(map(re.escape, names))})>(.*?)(?:</\1>|\Z)", text, re.DOTALL | re.IGNORECASE
    )
    return None if found is None else (found[1].lower(), found[2].strip())


def argument(action: Action, tools: Mapping[str, str]) -> tuple[str, str]:
    """``(tool, text)`` of the first call, where ``tools`` has for each tool the name of its only argument, a text.
    :class:`ValueError` with the reason for the model if it is wrong."""
    if not action.calls:
        raise ValueError(f"Call a tool: {', '.join(tools)}.")
    call = action.calls[0]
    if call.name not in tools:
        raise ValueError(f"There is no tool {call.name!r:.80}; call {', '.join(tools)}.")
    wanted = tools[call.name]
    given = call.arguments.get(wanted) if isinstance(call.arguments, dict) else None
    if not isinstance(given, str):
        raise ValueError(f"{call.name} needs an argument {wanted!r}, a text.")
    return call.name, given


def shortened(text: str, most: int) -> str:
    """The beginning and the end of a text of more than ``most`` characters."""
    if len(text) <= most:
        return text
    head, tail = text[: most - most // 2], text[len(text) - most // 2 :]
    return f"{head}\n[{len(text) - most} characters are left out]\n{tail}"
