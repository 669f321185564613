"""The content of a message: text, or parts where the agent shows an image, in one form whatever the dialect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from astraflow_gateway.requests import BadRequest
from astraflow_wire.images.parts import image_of

Part = dict[str, Any]
Content = str | list[Part]
"""Parts are those of chat completions, with an image in a ``data:`` URL; without an image it is text."""


def text_part(text: str) -> Part:
    """A part with text."""
    return {"type": "text", "text": text}


def image_part(url: Any, where: str) -> Part:
    """A part with the image of a ``data:`` URL. :class:`BadRequest` for an address, which is not fetched, and an image that
    cannot be read."""
    try:
        image_of(url)
    except ValueError as error:
        raise BadRequest(f"{where}: {error}", param=where) from error
    return {"type": "image_url", "image_url": {"url": url}}


def content_of(parts: Sequence[Part], between: str = "") -> Content:
    """Parts as content: texts side by side become one, with ``between`` between them."""
    merged: list[Part] = []
    for part in parts:
        if part["type"] == "text" and merged and merged[-1]["type"] == "text":
            merged[-1] = text_part(merged[-1]["text"] + between + part["text"])
        else:
            merged.append(part)
    if any(part["type"] != "text" for part in merged):
        return merged
    return merged[0]["text"] if merged else ""


def text_of(content: str | Sequence[Mapping[str, Any]] | None, where: str) -> str:
    """Text, or the joined texts of the parts of chat completions; other parts are refused."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(_text(part, where, "text") for part in content)


def shown_content(content: str | Sequence[Mapping[str, Any]] | None, where: str) -> Content:
    """The same for who may show an image: the user, and a tool."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = []
    for part in content:
        if part.get("type") == "image_url":
            place = part.get("image_url")
            parts.append(
                image_part(place.get("url") if isinstance(place, Mapping) else place, where)
            )
        else:
            parts.append(text_part(_text(part, where, "text or image_url")))
    return content_of(parts)


def _text(part: Mapping[str, Any], where: str, expected: str) -> str:
    text = part.get("text", part.get("refusal"))
    if not isinstance(text, str):
        raise BadRequest(
            f"{where}: a part of type {part.get('type')!r:.80} cannot be given to this model; expected {expected}",
            param=where,
        )
    return text
