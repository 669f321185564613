"""Images of requests, as vLLM's ``/inference/v1/generate`` takes them along with the tokens: as its processors would have prepared
them.

The server is given pixels and never files: its own processor scales with torchvision where that is installed, and turns
transparent images white, and so would see others than the trainer.
"""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from astraflow_core.errors import PreflightError
from astraflow_core.types import Images, ImageSpan
from astraflow_serving.model_folder import reads_images
from astraflow_serving.tokens import check_images

if TYPE_CHECKING:
    from astraflow_torch_weights.pixels import PixelReader

MODALITY = "image"
_TENSOR = 3
"""The extension type of MessagePack in which vLLM has the bytes of a tensor (``vllm.v1.serial_utils``)."""


class RequestImages:
    """Those of requests for the model in ``folder``, if it is of a type that reads them. Raises :class:`UserError` if it
    lacks its processor, and :class:`PreflightError` without PyTorch and transformers in this interpreter."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._reader = _reader(folder) if reads_images(folder) else None

    async def read(self, tokens: npt.NDArray[np.int32], images: Images) -> None:
        """Refuse early what cannot be read: see :meth:`PixelReader.read`."""
        if images and self._reader is None:
            check_images("vllm", self._folder, None, tokens, images)
        elif self._reader is not None:
            await self._reader.read(tokens, images)

    async def packed(self, tokens: npt.NDArray[np.int32], images: Images) -> list[str]:
        """What :func:`packed` makes of each."""
        if not images or self._reader is None:
            return []
        pixels = await self._reader.read(tokens, images)
        return await asyncio.to_thread(lambda: [packed(each.numpy()[0]) for each in pixels])


def _reader(folder: Path) -> PixelReader:
    try:
        from astraflow_torch_weights.pixels import ImagePixels, PixelReader
    except ImportError as error:
        raise PreflightError(
            f"engine 'vllm': the model in {folder} reads images, for which its engine host needs PyTorch and transformers "
            f"({error}): set python to an interpreter with vLLM, such as 'env:vllm', in [policies.NAME.engine]"
        ) from error
    return PixelReader("vllm", folder, ImagePixels(folder))


def features_of(images: Images, items: list[str], salt: str) -> dict[str, Any] | None:
    """The field ``features`` of a request: where each of ``images`` stands among the tokens, with the result of :func:`packed`;
    none without images. vLLM caches the output of its vision tower by the hash of the image, and another
    version of the tower has another output: so ``salt`` is part of the hash."""
    if not images:
        return None
    return {
        "mm_hashes": {MODALITY: [f"{salt}.{image.digest}" for image in images]},
        "mm_placeholders": {MODALITY: [_place(image) for image in images]},
        "kwargs_data": {MODALITY: items},
    }


def _place(image: ImageSpan) -> dict[str, int]:
    return {"offset": image.start, "length": image.length}


def packed(pixels: npt.NDArray[np.float32]) -> str:
    """``[channels, height, width]`` as vLLM's ``MultiModalKwargsItem`` of one image, in base64 (vLLM 0.32,
    ``entrypoints/scale_out/token_in_token_out/mm_serde.py``)."""
    whole = np.ascontiguousarray(pixels, np.float32)
    item = {
        "pixel_values": {
            "data": ("float32", whole.shape, msgspec.msgpack.Ext(_TENSOR, whole.data.cast("B"))),
            "field": ("batched", {"keep_on_cpu": False}),
        }
    }
    return base64.b64encode(msgspec.msgpack.encode(item)).decode()
