"""Where images stand among the tokens of a prompt."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from astraflow_core.types import Images, ImageSpan
from astraflow_wire.images.files import digest_of
from astraflow_wire.images.model import ImageModel

Tokens = npt.NDArray[np.int32]


def expanded(tokens: Tokens, files: Sequence[bytes], model: ImageModel) -> tuple[Tokens, Images]:
    """``tokens``, in which the placeholder of each of the image ``files`` stands once, with as many placeholders as the
    model reads for an image; and the images in their places. :class:`ValueError` if there are not as many placeholders as
    images."""
    places = np.flatnonzero(tokens == model.token)
    if len(places) != len(files):
        raise ValueError(
            f"the chat template wrote {len(places)} placeholders (token {model.token}) for {len(files)} images; use a model "
            "whose template has one for each part of type 'image', and leave the text of the placeholder out of messages"
        )
    repeats = np.ones(len(tokens), np.int64)
    repeats[places] = model.length
    starts = places + np.arange(len(places)) * (model.length - 1)
    images = tuple(
        ImageSpan(start, model.length, digest_of(data), data)
        for start, data in zip(starts.tolist(), files, strict=True)
    )
    return np.repeat(tokens, repeats), images
