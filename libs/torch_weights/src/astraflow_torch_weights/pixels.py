"""What the processor of a model makes of image files, without the model."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Protocol

import numpy.typing as npt
import torch
from numpy import int32

from astraflow_core.errors import UserError
from astraflow_core.types import Images, ImageSpan
from astraflow_serving.tokens import check_images
from astraflow_wire.images.files import decoded
from astraflow_wire.images.model import ImageModel

CACHED_BYTES = 256 << 20
"""Of pixels that are kept, so that what a group or a conversation sees again is not decoded again."""


class PixelSource(Protocol):
    """Makes pixels of the images of one model; may be called by several threads."""

    @property
    def model(self) -> ImageModel:
        """How many tokens an image becomes."""

    def pixels(self, image: ImageSpan) -> torch.Tensor:
        """The pixels of an image, ``[1, channels, height, width]`` on the CPU. :class:`UserError` if its file is damaged."""


class ImagePixels:
    """By the processor in ``folder``, always with Pillow: engine and trainer see the same. Raises :class:`UserError` if the
    folder has none, or one that does not fit the model."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoImageProcessor
        from transformers.utils import logging as transformers_logging

        transformers_logging.set_verbosity_error()  # every class without torchvision would be named
        try:
            self._model = ImageModel.of(folder)
            self._processor = AutoImageProcessor.from_pretrained(
                folder, backend="pil", local_files_only=True
            )
        except (OSError, ValueError, ImportError) as error:
            raise UserError(f"the model in {folder} cannot read images: it {error}") from error
        self._cached: OrderedDict[str, torch.Tensor] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    @property
    def model(self) -> ImageModel:
        """The image model of ``folder``."""
        return self._model

    def pixels(self, image: ImageSpan) -> torch.Tensor:
        """The pixels of an image, ``[1, channels, height, width]`` on the CPU. :class:`UserError` if its file is damaged."""
        with self._lock:
            if (found := self._cached.get(image.digest)) is not None:
                self._cached.move_to_end(image.digest)
                return found
        try:
            picture = decoded(image.data)
        except ValueError as error:
            raise UserError(f"image {image.digest}: {error}") from error
        made: torch.Tensor = self._processor(images=[picture], return_tensors="pt")["pixel_values"]
        with self._lock:
            if image.digest not in self._cached:
                self._cached[image.digest] = made
                self._bytes += made.nbytes
            while self._bytes > CACHED_BYTES and len(self._cached) > 1:
                self._bytes -= self._cached.popitem(last=False)[1].nbytes
        return made


class PixelReader:
    """Decodes the images of requests off the event loop of engine ``name``, so that decoding does not block
    it. Concurrent requests with the same image wait for the same decoding, and so continue together. ``source`` is
    ``None`` if the model in ``folder`` reads no images."""

    def __init__(self, name: str, folder: Path, source: PixelSource | None) -> None:
        self._name = name
        self._folder = folder
        self._source = source
        self._decoding: dict[str, asyncio.Task[torch.Tensor]] = {}

    async def read(self, tokens: npt.NDArray[int32], images: Images) -> list[torch.Tensor]:
        """The pixels of each of ``images``. :class:`UserError` if the model reads none or a file is damaged,
        :class:`ValueError` if a place has other tokens than the placeholders that it reads."""
        if not images:
            return []
        model = None if self._source is None else self._source.model
        check_images(self._name, self._folder, model, tokens, images)
        # Shielded: another request may wait for the same.
        return await asyncio.gather(*(asyncio.shield(self._task(image)) for image in images))

    def _task(self, image: ImageSpan) -> asyncio.Task[torch.Tensor]:
        if (task := self._decoding.get(image.digest)) is None:
            assert self._source is not None, "checked before"
            task = asyncio.create_task(asyncio.to_thread(self._source.pixels, image))
            self._decoding[image.digest] = task
            task.add_done_callback(lambda _: self._decoding.pop(image.digest))
        return task
