"""A tiny model that reads images, and pictures for it."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from astraflow_core.types import Images, ImageSpan
from astraflow_tiny_model.vision import write_tiny_vision_model
from astraflow_wire.images.files import digest_of
from astraflow_wire.images.model import ImageModel


def write_picture_model(folder: Path, seed: int = 0, **keys: Any) -> Path:
    """A model of context 64 whose distributions are far from uniform; an image is 4 tokens."""
    return write_tiny_vision_model(folder, hidden=32, context=64, init_std=0.3, seed=seed, **keys)


def picture(seed: int, size: tuple[int, int] = (11, 7)) -> bytes:
    """The PNG file of a random picture."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def prompt(
    model: ImageModel, *parts: Sequence[int] | bytes
) -> tuple[npt.NDArray[np.int32], Images]:
    """Token ids, with the placeholders of images where ``parts`` has their files."""
    ids: list[int] = []
    images = []
    for part in parts:
        if isinstance(part, bytes):
            images.append(ImageSpan(len(ids), model.length, digest_of(part), part))
            ids += [model.token] * model.length
        else:
            ids += part
    return np.array(ids, np.int32), tuple(images)
