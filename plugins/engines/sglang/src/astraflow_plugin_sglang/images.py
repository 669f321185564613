"""Images of requests, as ``/generate`` takes them beside token ids; see ``in_server`` for who reads them there."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from astraflow_core.errors import UserError
from astraflow_core.types import Images, ImageSpan
from astraflow_serving.model_folder import reads_images
from astraflow_serving.tokens import check_images
from astraflow_wire.images.files import verified
from astraflow_wire.images.model import ImageModel

IN_SERVER = Path(__file__).with_name("in_server")
"""On the path of a server whose model reads images."""
PACKAGES = {
    "SGLANG_EXTERNAL_MODEL_PACKAGE": "astraflow_sglang_models",
    "SGLANG_EXTERNAL_MM_PROCESSOR_PACKAGE": "astraflow_sglang_processors",
}


def server_variables(model: Path, given: Mapping[str, str]) -> dict[str, str]:
    """Of the environment of a server on ``model``, in addition to those that are ``given``."""
    if not reads_images(model):
        return {}
    path = filter(None, (str(IN_SERVER), given.get("PYTHONPATH")))
    return {**PACKAGES, "PYTHONPATH": os.pathsep.join(path)}


class ImageFiles:
    """Those of requests for the model in ``folder``. Raises :class:`UserError` if it is of a type that reads images and lacks its
    processor. ``token`` is the placeholder, if it reads any."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._model: ImageModel | None = None
        if reads_images(folder):
            try:
                self._model = ImageModel.of(folder)
            except ValueError as error:
                raise UserError(
                    f"engine 'sglang': the model in {folder} cannot read images: it {error}"
                ) from error

    @property
    def token(self) -> int | None:
        """The placeholder."""
        return None if self._model is None else self._model.token

    async def check(self, tokens: npt.NDArray[np.int32], images: Images) -> None:
        """Raise :class:`UserError` if the model reads none or a file is visibly damaged, :class:`ValueError` if a place has other
        tokens than the placeholders that it reads."""
        if images:
            check_images("sglang", self._folder, self._model, tokens, images)
            await asyncio.to_thread(_verify, images)


def _verify(images: Images) -> None:
    for image in images:
        try:
            verified(image.data)
        except ValueError as error:
            raise UserError(f"image {image.digest}: {error}") from error


def image_data(images: Images) -> list[str]:
    """The files, each with its place among the tokens."""
    return [_written(image) for image in images]


def _written(image: ImageSpan) -> str:
    place = f"offset={image.start};length={image.length}"
    file = base64.b64encode(image.data).decode()
    return f"data:application/octet-stream;{place};base64,{file}"
