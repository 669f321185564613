"""Images for a vision-language model of transformers: their features, and the embeddings in which they stand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from astraflow_core.errors import UserError
from astraflow_core.types import ImageSpan
from astraflow_torch_weights.pixels import ImagePixels
from astraflow_wire.images.model import TYPE, ImageModel


def reads_images(config: Any) -> bool:
    """Whether a model with this transformers configuration has a vision tower that an :class:`ImageEncoder` knows."""
    return getattr(config, "model_type", "") == TYPE


class ImageEncoder:
    """The images of one model: ``folder`` has its processor, ``whole`` is the transformers model. May be used by several
    threads. Raises :class:`UserError` if the folder has no processor, or one that does not fit the model."""

    def __init__(self, folder: Path, whole: Any) -> None:
        self._made = ImagePixels(folder)
        self._whole = whole

    @property
    def model(self) -> ImageModel:
        """How many tokens an image becomes."""
        return self._made.model

    def of(self, whole: Any) -> ImageEncoder:
        """The same for a copy of the model."""
        other = object.__new__(ImageEncoder)
        other.__dict__.update(self.__dict__)
        other._whole = whole
        return other

    def pixels(self, image: ImageSpan) -> torch.Tensor:
        """As :meth:`ImagePixels.pixels`."""
        return self._made.pixels(image)

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
        ``B · T`` tokens. Where an image is cut short, only its beginning is used."""
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
