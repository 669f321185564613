"""Token ids with images, as engines and trainers get them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from astraflow_core.types import Images
from astraflow_testing.conformance._models.qwen3 import Ids
from astraflow_testing.images.pictures import picture, prompt
from astraflow_wire.images.model import ImageModel

Row = tuple[Ids, Images]


def pictured_rows(folder: Path) -> list[Row]:
    """Rows for the model in ``folder``: without an image; two that differ in their images alone; one with a text between
    images, of which one comes twice; and one whose first image another row has, at another place."""
    red, green = picture(1), picture(2, (40, 3))
    parts: tuple[Sequence[Sequence[int] | bytes], ...] = (
        ([3, 4, 5, 6],),
        (red, [5, 6, 7]),
        (green, [5, 6, 7]),
        ([8], red, [9, 10], green, green, [11, 12, 13]),
        ([4, 2], green, [5, 6], picture(3), [9]),
    )
    model = ImageModel.of(folder)
    return [prompt(model, *each) for each in parts]


def joined(rows: Sequence[Row]) -> tuple[Ids, Ids, Images]:
    """Their tokens one after the other, how many each has, and the images by their places among all of them."""
    lengths = np.array([len(tokens) for tokens, _ in rows], np.int32)
    starts = np.cumsum(lengths) - lengths
    images = tuple(
        image.moved(start)
        for (_, some), start in zip(rows, starts.tolist(), strict=True)
        for image in some
    )
    return np.concatenate([tokens for tokens, _ in rows]), lengths, images
