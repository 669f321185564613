"""Items of a conversation, as messages for the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from astraflow_gateway.chat.messages import Message, tool_call
from astraflow_gateway.dialects.bodies import Names
from astraflow_gateway.dialects.content import Content, Part, content_of, image_part, text_part
from astraflow_gateway.dialects.dialect import Json
from astraflow_gateway.dialects.responses.tools import full_name
from astraflow_gateway.requests import BadRequest

_TEXTS = ("input_text", "output_text", "text", "refusal")


def items_of(given: str | Sequence[Json]) -> list[Json]:
    """``input`` as a list."""
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    return list(given)


def messages_of(items: Sequence[Json]) -> Iterator[Message]:
    """What follows each other of an assistant's reasoning, text and calls is one message, as the model said it."""
    names = Names()
    said: Message | None = None
    for at, item in enumerate(items):
        place = f"input[{at}]"
        kind = item.get("type", "message")
        own = kind in ("reasoning", "function_call") or (
            kind == "message" and item.get("role") == "assistant"
        )
        if own:
            if said is None or _begins_another(said, kind):
                yield from _finished(said, names)
                said = {"role": "assistant", "content": ""}
            _add(said, item, kind, place)
            continue
        yield from _finished(said, names)
        said = None
        yield _other(item, kind, place, names)
    yield from _finished(said, names)


def _begins_another(said: Message, kind: str) -> bool:
    """Whether an item cannot be of the message ``said``: it would come before what that has."""
    if kind == "reasoning":
        return bool(said["content"] or "tool_calls" in said)
    return kind == "message" and bool(said["content"] or "tool_calls" in said)


def _finished(said: Message | None, names: Names) -> Iterator[Message]:
    """Reasoning that nothing follows is of a reply that was cut, and says nothing."""
    if said is not None and (said["content"] or "tool_calls" in said):
        names.learn(said)
        yield said


def _add(said: Message, item: Mapping[str, Any], kind: str, place: str) -> None:
    if kind == "message":
        said["content"] = _text(item.get("content"), f"{place}.content")
    elif kind == "reasoning":
        if thought := _text(item.get("content") or [], f"{place}.content", ("reasoning_text",)):
            said["reasoning_content"] = thought
    else:
        id, name = _field(item, "call_id", place), _field(item, "name", place)
        name = full_name(item.get("namespace"), name)
        call = tool_call(id, name, _field(item, "arguments", place))
        said.setdefault("tool_calls", []).append(call)


def _other(item: Mapping[str, Any], kind: Any, place: str, names: Names) -> Message:
    if kind == "message":
        role = item.get("role")
        if role not in ("user", "system", "developer"):
            raise BadRequest(
                f"{place}.role is {role!r:.80}; expected user, assistant, system or developer",
                param=f"{place}.role",
            )
        read = _content if role == "user" else _text
        content = read(item.get("content"), f"{place}.content")
        return {"role": "user" if role == "user" else "system", "content": content}
    if kind == "function_call_output":
        id = _field(item, "call_id", place)
        if not (name := names.of(id)):
            raise BadRequest(
                f"{place}: no function_call before has the call_id {id!r:.80}", param=place
            )
        output = _content(item.get("output"), f"{place}.output")
        return {"role": "tool", "content": output, "tool_call_id": id, "name": name}
    raise BadRequest(
        f"{place}: an item of type {kind!r:.80} cannot be given to this model; expected message, reasoning, "
        "function_call or function_call_output",
        param=place,
    )


def _content(content: Any, place: str) -> Content:
    """A message of the user or a tool; it may have images."""
    if isinstance(content, str):
        return content
    parts: list[Part] = []
    for part in _parts(content, place):
        if isinstance(part, dict) and part.get("type") == "input_image":
            if part.get("image_url") is None:
                raise BadRequest(
                    f"{place}: an image without image_url; files are not kept here, so send it as 'data:image/png;base64,…'",
                    param=place,
                )
            parts.append(image_part(part["image_url"], place))
        else:
            parts.append(text_part(_text_of(part, place, _TEXTS, "text or input_image")))
    return content_of(parts)


def _text(content: Any, place: str, kinds: Sequence[str] = _TEXTS) -> str:
    if isinstance(content, str):
        return content
    return "".join(_text_of(part, place, kinds, "text") for part in _parts(content, place))


def _parts(content: Any, place: str) -> list[Any]:
    if not isinstance(content, list):
        raise BadRequest(
            f"{place} is {content!r:.80}; expected text or a list of parts", param=place
        )
    return content


def _text_of(part: Any, place: str, kinds: Sequence[str], expected: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else part
    field = "refusal" if kind == "refusal" else "text"
    text = part.get(field) if isinstance(part, dict) and kind in kinds else None
    if not isinstance(text, str):
        raise BadRequest(
            f"{place}: a part of type {kind!r:.80} cannot be given to this model; expected {expected}",
            param=place,
        )
    return text


def _field(item: Mapping[str, Any], name: str, place: str) -> str:
    value = item.get(name)
    if not isinstance(value, str) or (not value and name != "arguments"):
        raise BadRequest(f"{place}.{name} is {value!r:.80}; expected text", param=f"{place}.{name}")
    return value
