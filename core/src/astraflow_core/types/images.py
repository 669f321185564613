"""Images in sequences: encoded pictures, and the tokens that stand for them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class ImageSpan:
    """An image, for which the tokens ``start`` … ``start + length - 1`` stand: placeholders, which no policy sampled.

    ``data`` is an image file (PNG, JPEG or WebP) and ``digest`` its SHA-256 in hex; images with the same digest share it.
    """

    start: int
    length: int
    digest: str
    data: bytes | memoryview = field(repr=False, compare=False)

    @property
    def end(self) -> int:
        """Index after its last token."""
        return self.start + self.length

    def moved(self, by: int) -> ImageSpan:
        """The same image ``by`` tokens later."""
        return replace(self, start=self.start + by) if by else self


Images = tuple[ImageSpan, ...]
"""Ascending by their start, without overlaps."""


def images_between(images: Images, start: int, end: int, to: int) -> Images:
    """Those that begin from token ``start`` to before ``end``, as if token ``start`` were number ``to``."""
    first = bisect_left(images, start, key=lambda image: image.start)
    after = bisect_left(images, end, key=lambda image: image.start)
    return tuple(image.moved(to - start) for image in images[first:after])


def images_of_rows(images: Images, offsets: npt.NDArray[np.int64], rows: Sequence[int]) -> Images:
    """Those of the ``rows`` of a batch, one after the other; row ``i`` has the tokens from ``offsets[i]`` to before
    ``offsets[i + 1]``."""
    taken: list[ImageSpan] = []
    place = 0
    for row in rows:
        start, end = int(offsets[row]), int(offsets[row + 1])
        taken += images_between(images, start, end, place)
        place += end - start
    return tuple(taken)
