"""Images among the parts of chat messages, as the chat completions of OpenAI have them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from astraflow_wire.images.files import FORMATS, MAX_BYTES, MAX_IMAGES, verified

PLACEHOLDER = {"type": "image"}
"""A part with an image, as chat templates expect it."""


def split_images(
    messages: Sequence[Mapping[str, Any]],
) -> tuple[list[dict[str, Any]], list[bytes]]:
    """The messages with :data:`PLACEHOLDER` for each image, as a template reads them, and the image files in order. Content
    of parts without an image becomes one text.
    :class:`ValueError` that names the message for a part that is neither text nor an image, an image that is not in a
    ``data:`` URL or cannot be read, and for more than :data:`~astraflow_wire.images.files.MAX_IMAGES`."""
    files: list[bytes] = []
    plain = []
    for number, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, list):
            try:
                content = _content(content, files)
            except ValueError as error:
                raise ValueError(f"message {number}: {error}") from error
        plain.append({**message, "content": content} if "content" in message else dict(message))
    check_number(len(files))
    return plain, files


def check_number(images: int) -> None:
    """:class:`ValueError` for more images than a sequence may have."""
    if images > MAX_IMAGES:
        raise ValueError(f"a total of {images} images; the most is {MAX_IMAGES}")


def has_images(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a message has an image that is not yet a :data:`PLACEHOLDER`."""
    return any(
        isinstance(part, Mapping) and part.get("type") == "image_url"
        for message in messages
        if isinstance(content := message.get("content"), list)
        for part in content
    )


def _content(parts: list[Any], files: list[bytes]) -> str | list[dict[str, Any]]:
    """The parts, or their text if there is no image: not every template reads parts."""
    plain = [_part(part, files) for part in parts]
    if PLACEHOLDER in plain:
        return plain
    return "".join(part["text"] for part in plain)


def _part(part: Any, files: list[bytes]) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if kind != "image_url":
        raise ValueError(
            f"a part of content is {part!r:.60}; expected one of type 'text' or 'image_url'"
        )
    place = part.get("image_url")
    url = place.get("url") if isinstance(place, Mapping) else place
    files.append(image_of(url))
    return dict(PLACEHOLDER)


def image_of(url: Any) -> bytes:
    """The image file in a ``data:`` URL; :class:`ValueError` if there is none. Addresses are refused: nothing is fetched
    for a prompt."""
    if not isinstance(url, str):
        raise ValueError(
            f"an image_url is {url!r:.60}; expected {{'url': 'data:image/png;base64,…'}}"
        )
    if not url.startswith("data:"):
        raise ValueError(
            f"an image at the address {_shown(url)!r}: nothing is fetched from the network; put its bytes into the prompt, "
            "as 'data:image/png;base64,…'"
        )
    head, comma, body = url[5:].partition(",")
    if not comma or not head.endswith(";base64"):
        raise ValueError(f"an image URL begins {url[:40]!r}; expected 'data:image/png;base64,…'")
    if len(body) > MAX_BYTES // 3 * 4 + 8:
        raise ValueError(f"an image of {len(body) * 3 // 4} bytes; the most is {MAX_BYTES}")
    try:
        data = base64.b64decode(body, validate=True)
    except binascii.Error as error:
        raise ValueError(f"an image URL is not base64: {error}") from error
    if verified(data).format not in FORMATS:
        raise ValueError(f"an image is of another format than {', '.join(FORMATS)}")
    return data


def _shown(url: str) -> str:
    """Scheme and host of an address: its path or query may hold a secret."""
    try:
        split = urlsplit(url)
    except ValueError:
        return "unreadable"
    return f"{split.scheme}://{split.hostname or ''}"[:80]
