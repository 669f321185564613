"""The images of requests, on their way to the decoding thread."""

from __future__ import annotations

import asyncio

import numpy as np
import numpy.typing as npt
import torch

from astraflow_core.errors import UserError
from astraflow_core.types import Images, ImageSpan
from astraflow_plugin_torch_engine.model import CausalModel


class ImageReader:
    """Decodes images beside the event loop and the decoding thread, so that neither stands still for them. Requests that
    come together and have the same image wait for the same decoding, and so go on together."""

    def __init__(self, model: CausalModel) -> None:
        self._model = model
        self._decoding: dict[str, asyncio.Task[torch.Tensor]] = {}

    async def read(self, tokens: npt.NDArray[np.int32], images: Images) -> None:
        """Returns when the pixels of ``images`` are at hand. :class:`UserError` if the model reads none or a file is
        damaged, :class:`ValueError` if a place has other tokens than the placeholders that it reads."""
        if not images:
            return
        if self._model.images is None:
            raise UserError(
                f"engine 'torch': the model in {self._model.folder} reads no images: name one of type 'llava', with a "
                "processor"
            )
        wanted = self._model.images.model
        for image in images:
            there = tokens[image.start : image.end]
            alike = len(there) == image.length == wanted.length
            if not alike or (there != wanted.token).any():
                raise ValueError(
                    f"an image at token {image.start} has {image.length} tokens; expected {wanted.length} placeholders, "
                    f"token {wanted.token}"
                )
        # Shielded: another request may wait for the same.
        await asyncio.gather(*(asyncio.shield(self._task(image)) for image in images))

    def _task(self, image: ImageSpan) -> asyncio.Task[torch.Tensor]:
        if (task := self._decoding.get(image.digest)) is None:
            assert self._model.images is not None, "checked before"
            task = asyncio.create_task(asyncio.to_thread(self._model.images.pixels, image))
            self._decoding[image.digest] = task
            task.add_done_callback(lambda _: self._decoding.pop(image.digest))
        return task
