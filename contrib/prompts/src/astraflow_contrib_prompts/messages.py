"""Prompts as a file has them: text, or chat messages of text and images."""

from __future__ import annotations

from typing import Any

from astraflow_wire.images.parts import check_number, image_of

_OTHERS = frozenset({"image", "input_image", "video", "video_url", "audio", "input_audio"})


def checked_prompt(value: Any) -> str | list[dict[str, Any]]:
    """The prompt, messages with their content as one text each, or as a list of parts where there are images; raises
    :class:`ValueError` with the reason if it is invalid."""
    if isinstance(value, str):
        if not value:
            raise ValueError("is empty")
        return value
    if not isinstance(value, list) or not value:
        raise ValueError(f"must be text or a list of messages, got {value!r:.40}")
    messages = [_message(message) for message in value]
    images = sum(part["type"] != "text" for each in messages for part in _parts(each))
    try:
        check_number(images)
    except ValueError as error:
        raise ValueError(f"has {error}") from error
    return messages


def _parts(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return content if isinstance(content, list) else []


def _message(message: Any) -> dict[str, Any]:
    if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
        raise ValueError(f"has a message without 'role' and 'content': {message!r:.60}")
    if not isinstance(message["role"], str) or not message["role"]:
        raise ValueError(f"has a message whose role is {message['role']!r:.40}; expected a string")
    return {**message, "content": _content(message)}


def _content(message: dict[str, Any]) -> str | list[dict[str, Any]] | None:
    content = message["content"]
    if isinstance(content, str) or (content is None and message.get("tool_calls")):
        return content
    if not isinstance(content, list):
        raise ValueError(f"has a message whose content is {content!r:.40}; expected a string")
    parts = [_part(part) for part in content]
    if any(part["type"] != "text" for part in parts):
        return parts
    return "".join(part["text"] for part in parts)


def _part(part: Any) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in _OTHERS:
        raise ValueError(
            f"has a part of type {kind!r}: policies read text and images of type 'image_url' only; leave such rows out of the "
            "file"
        )
    if kind == "image_url":
        place = part.get("image_url")
        try:
            image_of(place.get("url") if isinstance(place, dict) else place)
        except ValueError as error:
            raise ValueError(f"has an image that cannot be used: {error}") from error
        return dict(part)
    if kind != "text" or not isinstance(part.get("text"), str):
        raise ValueError(f"has a part of content that is not text: {part!r:.60}")
    return dict(part)


def text_of(data: dict[str, Any]) -> str:
    """The text of a prompt's data, of messages one after the other; empty if it has none. An image has its address as text,
    so that the same question about another image is another text."""
    prompt = data.get("prompt")
    if isinstance(prompt, list):
        contents = [message.get("content") for message in prompt if isinstance(message, dict)]
        texts = (
            "".join(map(_text_of_part, content)) if isinstance(content, list) else content
            for content in contents
        )
        return "\n".join(text for text in texts if isinstance(text, str))
    return prompt if isinstance(prompt, str) else ""


def _text_of_part(part: dict[str, Any]) -> str:
    return str(part["text"]) if part.get("type") == "text" else str(part.get("image_url"))
