"""The body of a request for a message."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import msgspec

from astraflow_gateway.chat.messages import Message, tool_call
from astraflow_gateway.dialects.bodies import (
    Names,
    chosen_tool,
    most_tokens,
    refuse_unavailable,
    sampling_of,
    stops_of,
    tools_of,
)
from astraflow_gateway.dialects.content import Part, content_of, image_part, text_part
from astraflow_gateway.requests import BadRequest, ModelRequest

_UNAVAILABLE = ("container", "mcp_servers", "prefill", "output_format")
_BILLING = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n?")
_BETWEEN = "\n\n"
"""What stands between the texts of two blocks."""
Blocks = Sequence[Mapping[str, Any]]


class _Said(msgspec.Struct):
    """A message of the history."""

    role: Literal["user", "assistant", "system"]
    content: str | list[dict[str, Any]]


class MessagesPrompt(msgspec.Struct, kw_only=True):
    """What the model is to read: the fields that are read; an agent may send others."""

    messages: list[_Said]
    model: str = ""
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    output_format: Any = None
    container: Any = None
    mcp_servers: Any = None
    prefill: Any = None


class MessagesBody(MessagesPrompt, kw_only=True):
    """A conversation that the model is to continue."""

    max_tokens: int
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None

    @property
    def shows_thinking(self) -> bool:
        """Whether reasoning belongs to the reply; otherwise it is sampled and left out of it."""
        thinking = self.thinking or {}
        return thinking.get("type", "disabled") != "disabled" and (
            thinking.get("display") != "omitted"
        )


def request_of(asked: MessagesPrompt) -> ModelRequest:
    """What is asked, without the settings of sampling."""
    refuse_unavailable(asked, _UNAVAILABLE)
    if (asked.output_config or {}).get("format") is not None:
        raise BadRequest(
            "output_config.format is not available: the model's output is unconstrained",
            param="output_config.format",
        )
    if not asked.messages:
        raise BadRequest("messages: at least one message is required", param="messages")
    if asked.messages[-1].role == "assistant":
        raise BadRequest(
            "messages: the last message is the assistant's; a reply cannot be prefilled here, so end with the user's",
            param="messages",
        )
    offered = asked.tools or []
    every = tools_of([_tool(tool, f"tools[{at}]") for at, tool in enumerate(offered)])
    tools = [
        each for each, tool in zip(every, offered, strict=True) if not tool.get("defer_loading")
    ]
    return ModelRequest(
        model=asked.model,
        messages=[*_system(asked.system), *_messages(asked.messages, every)],
        tools=tools,
        tool_choice=_choice(asked.tool_choice, {each["function"]["name"] for each in tools}),
    )


def sampled_request_of(asked: MessagesBody) -> ModelRequest:
    """What is asked, and how it is to be sampled."""
    return replace(
        request_of(asked),
        max_tokens=most_tokens(asked.max_tokens),
        stop=stops_of(asked.stop_sequences, "stop_sequences"),
        sampling=sampling_of(asked),
    )


def _system(system: str | Blocks | None) -> Iterator[Message]:
    if system is None:
        return
    texts = [system] if isinstance(system, str) else _texts(system, "system")
    # Claude Code begins with a line for its bills that differs in each request: no prompt would continue another.
    if text := "\n\n".join(text for each in texts if (text := _BILLING.sub("", each))):
        yield {"role": "system", "content": text}


def _messages(said: Sequence[_Said], tools: Sequence[Mapping[str, Any]]) -> Iterator[Message]:
    names = Names()
    told = {tool["function"]["name"]: json.dumps(tool, ensure_ascii=False) for tool in tools}
    for at, each in enumerate(said):
        where = f"messages[{at}].content"
        blocks = each.content
        if isinstance(blocks, str):
            yield {"role": each.role, "content": blocks}
        elif each.role == "assistant":
            message = _assistant(blocks, where)
            names.learn(message)
            yield message
        elif each.role == "system":
            yield {"role": "system", "content": "\n\n".join(_texts(blocks, where))}
        else:
            yield from _user(blocks, where, names, told)


def _assistant(blocks: Blocks, where: str) -> Message:
    texts, thoughts, calls = [], [], []
    for at, block in enumerate(blocks):
        place = f"{where}[{at}]"
        match block.get("type"):
            case "text":
                texts.append(_field(block, "text", str, place))
            case "thinking":
                thoughts.append(_field(block, "thinking", str, place))
            case "redacted_thinking":
                pass
            case "tool_use":
                arguments = json.dumps(_field(block, "input", dict, place))
                id, name = _field(block, "id", str, place), _field(block, "name", str, place)
                calls.append(tool_call(id, name, arguments))
            case other:
                raise _foreign(other, place)
    message: Message = {"role": "assistant", "content": "".join(texts)}
    if thought := "".join(thoughts):
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = calls
    return message


def _user(blocks: Blocks, where: str, names: Names, told: Mapping[str, str]) -> Iterator[Message]:
    """Results of tools are messages of their own; texts and images side by side are one. ``told``: name → text of the tools that a
    result may refer to."""
    if not blocks:
        raise BadRequest(f"{where} is empty; at least one block is needed", param=where)
    parts: list[Part] = []
    for at, block in enumerate(blocks):
        if block.get("type") != "tool_result":
            parts.append(_part(block, f"{where}[{at}]"))
            continue
        if parts:
            yield {"role": "user", "content": content_of(parts, _BETWEEN)}
            parts = []
        yield _result(block, f"{where}[{at}]", names, told)
    if parts:
        yield {"role": "user", "content": content_of(parts, _BETWEEN)}


def _result(block: Mapping[str, Any], place: str, names: Names, told: Mapping[str, str]) -> Message:
    id = _field(block, "tool_use_id", str, place)
    if not (name := names.of(id)):
        raise BadRequest(
            f"{place}: tool_use_id {id!r} does not match an earlier tool_use block", param=place
        )
    content = block.get("content") or ""
    if not isinstance(content, (str, list)):
        raise BadRequest(f"{place}.content: expected text or blocks of text", param=place)
    if not isinstance(content, str):
        blocks = [
            _referred(each, f"{place}.content[{at}]", told) for at, each in enumerate(content)
        ]
        parts = [_part(each, f"{place}.content[{at}]") for at, each in enumerate(blocks)]
        content = content_of(parts, _BETWEEN)
    return {"role": "tool", "content": content, "tool_call_id": id, "name": name}


def _referred(block: Any, place: str, told: Mapping[str, str]) -> Any:
    """A reference to a tool that was not offered before (``defer_loading``), as text that describes it: the text before
    it is unchanged, so that the turns remain one sequence."""
    if not isinstance(block, dict) or block.get("type") != "tool_reference":
        return block
    name = _field(block, "tool_name", str, place)
    if name not in told:
        raise BadRequest(f"{place}: tool_name {name!r:.80} is not one of the tools", param=place)
    return {"type": "text", "text": told[name]}


def _texts(blocks: Blocks, where: str) -> list[str]:
    found = []
    for at, block in enumerate(blocks):
        place = f"{where}[{at}]"
        if not isinstance(block, dict) or block.get("type") != "text":
            raise _foreign(block.get("type") if isinstance(block, dict) else block, place)
        found.append(_field(block, "text", str, place))
    return found


def _part(block: Any, place: str) -> Part:
    match block.get("type") if isinstance(block, dict) else block:
        case "text":
            return text_part(_field(block, "text", str, place))
        case "image":
            return image_part(_url(_field(block, "source", dict, place), place), place)
        case other:
            raise _foreign(other, place, "text or an image")


def _url(source: Mapping[str, Any], place: str) -> str:
    """An address is refused where the image is read."""
    match source.get("type"):
        case "base64":
            kind = _field(source, "media_type", str, f"{place}.source")
            return f"data:{kind};base64,{_field(source, 'data', str, f'{place}.source')}"
        case "url":
            return str(_field(source, "url", str, f"{place}.source"))
        case other:
            raise BadRequest(
                f"{place}.source is of type {other!r:.80}; expected base64",
                param=f"{place}.source",
            )


def _field(block: Mapping[str, Any], name: str, kind: type, place: str) -> Any:
    value = block.get(name)
    if not isinstance(value, kind):
        raise BadRequest(
            f"{place}.{name} is {value!r:.80}; expected {'text' if kind is str else 'an object'}",
            param=f"{place}.{name}",
        )
    return value


def _foreign(kind: object, place: str, expected: str = "text") -> BadRequest:
    return BadRequest(
        f"{place}: a block of type {kind!r:.80} cannot be given to this model; expected {expected}",
        param=place,
    )


def _tool(tool: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """In the form of OpenAI."""
    if tool.get("type") not in (None, "custom"):
        raise BadRequest(
            f"{where} is of type {tool['type']!r:.80}, which runs on a server; expected a tool of your own (custom)",
            param=where,
        )
    function = {"name": tool.get("name"), "parameters": tool.get("input_schema")}
    if tool.get("description"):
        function["description"] = tool["description"]
    return {"type": "function", "function": function}


def _choice(wanted: Mapping[str, Any] | None, names: set[str]) -> str:
    match (wanted or {"type": "auto"}).get("type"):
        case "auto" | "none" as choice:
            return chosen_tool(choice, names)
        case "any":
            return chosen_tool("required", names)
        case "tool":
            return chosen_tool({"name": (wanted or {}).get("name")}, names)
        case other:
            raise BadRequest(
                f"tool_choice.type is {other!r:.80}; expected auto, any, tool or none",
                param="tool_choice",
            )
