"""Images for a vision-language model of transformers: pixels, their features, and the embeddings in which they stand."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoImageProcessor
from transformers.utils import logging as transformers_logging

from astraflow_core.errors import UserError
from astraflow_core.types import ImageSpan
from astraflow_wire.images.files import decoded
from astraflow_wire.images.model import TYPE, ImageModel

CACHED_BYTES = 256 << 20
"""Of pixels that are kept, so that what a group or a conversation sees again is not decoded again."""


def reads_images(config: Any) -> bool:
    """Whether a model with this transformers configuration has a vision tower that an :class:`ImageEncoder` knows."""
    return getattr(config, "model_type", "") == TYPE


class ImageEncoder:
    """The images of one model: ``folder`` has its processor, ``whole`` is the transformers model. May be used by several
    threads. Raises :class:`UserError` if the folder has no processor, or one that does not fit the model."""

    def __init__(self, folder: Path, whole: Any) -> None:
        transformers_logging.set_verbosity_error()  # every class without torchvision would be named
        try:
            self.model = ImageModel.of(folder)
            # One backend everywhere, so that an engine and a trainer see the same pixels.
            self._processor = AutoImageProcessor.from_pretrained(
                folder, backend="pil", local_files_only=True
            )
        except (OSError, ValueError, ImportError) as error:
            raise UserError(f"the model in {folder} cannot read images: it {error}") from error
        self._whole = whole
        self._cached: OrderedDict[str, torch.Tensor] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def of(self, whole: Any) -> ImageEncoder:
        """The same for a copy of the model."""
        other = object.__new__(ImageEncoder)
        other.__dict__.update(self.__dict__)
        other._whole = whole
        return other

    def pixels(self, image: ImageSpan) -> torch.Tensor:
        """What the model's processor makes of an image, ``[1, channels, height, width]`` on the CPU. :class:`UserError` if
        its file is damaged."""
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

    def features(self, images: Iterable[ImageSpan]) -> dict[str, torch.Tensor]:
        """Digest → embeddings of the tokens of that image, ``[length, hidden]``, differentiable. Each image once."""
        once = {image.digest: image for image in images}
        tower = next(self._whole.get_input_embeddings().parameters())
        pixels = torch.cat([self.pixels(image) for image in once.values()])
        given = self._whole.get_image_features(
            pixel_values=pixels.to(tower.device, tower.dtype), return_dict=True
        ).pooler_output
        for rows in given:
            if len(rows) != self.model.length:
                raise UserError(
                    f"the model makes {len(rows)} tokens of an image; its config.json says {self.model.length}: the size of "
                    "its processor is not that of its vision tower"
                )
        return dict(zip(once, given, strict=True))

    def embed(self, ids: torch.Tensor, images: Sequence[ImageSpan]) -> torch.Tensor:
        """The inputs ``[B, T, hidden]`` for token ids ``[B, T]``, with images in their places: their ``start`` counts all
        ``B · T`` tokens. Where an image is shorter than the model makes it, only its beginning is there."""
        inputs: torch.Tensor = self._whole.get_input_embeddings()(ids)
        if not images:
            return inputs
        features = self.features(images)
        flat = inputs.flatten(0, 1)
        where = torch.cat([torch.arange(image.start, image.end) for image in images])
        values = [features[image.digest][: image.length] for image in images]
        return flat.index_copy(0, where.to(flat.device), torch.cat(values).to(flat.dtype)).view_as(
            inputs
        )
