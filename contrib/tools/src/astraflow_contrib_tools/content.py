"""The parts of a tool's result other than text: images, if the model can see them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from astraflow_environments.actions import shortened
from astraflow_wire.images.parts import image_of

Content = str | list[dict[str, Any]]
"""Of a message: text, or parts of text and images as in OpenAI's chat completions."""

IMAGE = "[image]"
"""In the place of an image that the model is not shown."""


def image_part(mime_type: str, data: str) -> dict[str, Any]:
    """The part for an image file in base64, which was not checked yet."""
    return {"type": "image_url", "image_url": {"url": f"data:{mime_type};base64,{data}"}}


def text_part(text: str) -> dict[str, Any]:
    """The part for a text."""
    return {"type": "text", "text": text}


def text_of(content: Content) -> str:
    """Its text, with each image named."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] if part["type"] == "text" else IMAGE for part in content)


def bounded(content: Content, characters: int) -> Content:
    """With the beginning and the end of its text, if that has more than ``characters``; images follow it then."""
    if isinstance(content, str):
        return shortened(content, characters)
    texts = [part["text"] for part in content if part["type"] == "text"]
    if sum(map(len, texts)) <= characters:
        return content
    images = [part for part in content if part["type"] != "text"]
    return [text_part(shortened("\n".join(texts), characters)), *images]


class ShownImages:
    """Of the results of one episode at most ``images`` are shown to the model."""

    def __init__(self, images: int) -> None:
        self._left = images

    def of(self, content: Content) -> Content:
        """What the model is shown of a result: text, unless it has images that may be shown. Images beyond the bound are named
        in the text, those that cannot be read with the reason."""
        if isinstance(content, str):
            return content
        parts = list(self._merged(content))
        if any(part["type"] != "text" for part in parts):
            return parts
        return str(parts[0]["text"]) if parts else ""

    def _merged(self, content: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        texts: list[str] = []
        for part in content:
            refused = self._refused(part) if part["type"] == "image_url" else part["text"]
            if refused is not None:
                texts.append(refused)
                continue
            if texts:
                yield text_part("\n".join(texts))
                texts = []
            yield part
        if texts:
            yield text_part("\n".join(texts))

    def _refused(self, part: dict[str, Any]) -> str | None:
        """The text for an image that is not shown."""
        if self._left == 0:
            return IMAGE
        try:
            image_of(part["image_url"]["url"])
        except ValueError as error:
            return f"[image, not shown: {error}]"
        self._left -= 1
        return None
