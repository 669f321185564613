"""Image files from outside: bounded, and of a known format, before anything is decoded."""

from __future__ import annotations

import hashlib
import io
import warnings
from typing import Any

MAX_BYTES = 4 << 20
"""Of an image file."""
MAX_PIXELS = 1 << 24
"""Width times height: decoded, an image has three or four bytes for each."""
MAX_IMAGES = 64
"""In a sequence."""
FORMATS = ("PNG", "JPEG", "WEBP")


def digest_of(data: bytes | memoryview) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(data).hexdigest()


def opened(data: bytes | memoryview) -> Any:
    """The image as a ``PIL.Image.Image`` of which nothing but the header is decoded; :class:`ValueError` if the bytes
    are none of :data:`FORMATS`, or beyond :data:`MAX_BYTES` or :data:`MAX_PIXELS`."""
    from PIL import Image, UnidentifiedImageError

    if len(data) > MAX_BYTES:
        raise ValueError(f"an image file has {len(data)} bytes; the most is {MAX_BYTES}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # see MAX_PIXELS
            image = Image.open(io.BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError as error:
        raise ValueError(
            f"{len(data)} bytes are no image; expected {', '.join(FORMATS)}"
        ) from error
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"an image of {len(data)} bytes is damaged: {error}") from error
    if image.width * image.height > MAX_PIXELS:
        raise ValueError(
            f"an image has {image.width} × {image.height} pixels; the most is {MAX_PIXELS}: make it smaller"
        )
    return image


def decoded(data: bytes | memoryview) -> Any:
    """The whole image as a ``PIL.Image.Image`` in RGB; :class:`ValueError` as of :func:`opened`, and if it is damaged."""
    image = opened(data)
    try:
        return image.convert("RGB")
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        raise ValueError(f"an image of {len(data)} bytes is damaged: {error}") from error
