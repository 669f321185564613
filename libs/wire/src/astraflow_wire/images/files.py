"""Image files from outside: bounded, and of a known format, before anything is decoded."""

from __future__ import annotations

import hashlib
import io
import struct
import warnings
from typing import Any

MAX_BYTES = 4 << 20
"""Of an image file."""
MAX_PIXELS = 1 << 24
"""Width times height: decoded, an image has three or four bytes for each."""
MAX_RATIO = 64
"""Of the longer side to the shorter: processors that scale the shorter side to a fixed size make a long image of a thin one."""
MAX_IMAGES = 64
"""In a sequence."""
FORMATS = ("PNG", "JPEG", "WEBP")
_DAMAGE = (OSError, SyntaxError, ValueError, EOFError, struct.error)
"""What Pillow raises for a file that is not as its format says."""


def digest_of(data: bytes | memoryview) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(data).hexdigest()


def opened(data: bytes | memoryview) -> Any:
    """The image as a ``PIL.Image.Image`` of which nothing but the header is decoded; :class:`ValueError` if the bytes
    are none of :data:`FORMATS`, or beyond :data:`MAX_BYTES`, :data:`MAX_PIXELS` or :data:`MAX_RATIO`."""
    from PIL import Image, UnidentifiedImageError

    if len(data) > MAX_BYTES:
        raise ValueError(f"an image file has {len(data)} bytes; the most is {MAX_BYTES}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # see MAX_PIXELS
            image = Image.open(io.BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError as error:
        raise ValueError(
            f"{len(data)} bytes are not an image; expected {', '.join(FORMATS)}"
        ) from error
    except Image.DecompressionBombError as error:
        raise ValueError(
            f"an image has far more than {MAX_PIXELS} pixels, the most: make it smaller"
        ) from error
    except _DAMAGE as error:
        raise _damaged(data, error) from error
    short, long = sorted(image.size)
    if short * long > MAX_PIXELS:
        raise ValueError(
            f"an image has {image.width} × {image.height} pixels; the most is {MAX_PIXELS}: make it smaller"
        )
    if long > MAX_RATIO * short:
        raise ValueError(
            f"an image has {image.width} × {image.height} pixels; one side may be at most {MAX_RATIO} times the other"
        )
    return image


def verified(data: bytes | memoryview) -> Any:
    """As :func:`opened`, and :class:`ValueError` for what can be seen of damage without decoding: a PNG whose chunks are cut
    off or differ from their checksums."""
    image = opened(data)
    try:
        image.verify()
    except _DAMAGE as error:
        raise _damaged(data, error) from error
    return image


def decoded(data: bytes | memoryview) -> Any:
    """The whole image as a ``PIL.Image.Image`` in RGB; :class:`ValueError` as of :func:`opened`, and if it is damaged."""
    image = opened(data)
    try:
        return image.convert("RGB")
    except _DAMAGE as error:
        raise _damaged(data, error) from error


def _damaged(data: bytes | memoryview, error: Exception) -> ValueError:
    return ValueError(f"an image of {len(data)} bytes is damaged: {error}")
