"""Prompts as a file has them: text, or chat messages of text."""

from __future__ import annotations

from typing import Any

_IMAGES = frozenset(
    {"image", "image_url", "input_image", "video", "video_url", "audio", "input_audio"}
)


def checked_prompt(value: Any) -> str | list[dict[str, Any]]:
    """The prompt, messages with their content as one text each; raises :class:`ValueError` with the reason if it is invalid."""
    if isinstance(value, str):
        if not value:
            raise ValueError("is empty")
        return value
    if not isinstance(value, list) or not value:
        raise ValueError(f"must be text or a list of messages, got {value!r:.40}")
    return [_message(message) for message in value]


def _message(message: Any) -> dict[str, Any]:
    if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
        raise ValueError(f"has a message without 'role' and 'content': {message!r:.60}")
    if not isinstance(message["role"], str) or not message["role"]:
        raise ValueError(f"has a message whose role is {message['role']!r:.40}; expected a string")
    return {**message, "content": _content(message)}


def _content(message: dict[str, Any]) -> str | None:
    content = message["content"]
    if isinstance(content, str) or (content is None and message.get("tool_calls")):
        return content
    if not isinstance(content, list):
        raise ValueError(f"has a message whose content is {content!r:.40}; expected a string")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in _IMAGES:
            raise ValueError(
                f"has a part of type {kind!r}: policies read text only; leave such rows out of the file"
            )
        if kind != "text" or not isinstance(part.get("text"), str):
            raise ValueError(f"has a part of content that is not text: {part!r:.60}")
        texts.append(part["text"])
    return "".join(texts)


def text_of(data: dict[str, Any]) -> str:
    """The text of a prompt's data, of messages one after the other; empty if it has none."""
    prompt = data.get("prompt")
    if isinstance(prompt, list):
        contents = [message.get("content") for message in prompt if isinstance(message, dict)]
        return "\n".join(content for content in contents if isinstance(content, str))
    return prompt if isinstance(prompt, str) else ""
