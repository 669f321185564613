"""Images of requests for LLaVA models: files whose places among the token ids are known.

SGLang's own class expands the placeholders of a text, reads one image of a prompt and sends pixels as float16. This one takes
token ids in which all placeholders stand already, and prepares images as engine and trainer ``torch`` do: by the processor of
transformers, with Pillow, in float32.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import re
from typing import Any, ClassVar

from PIL import Image
from sglang.srt.managers.schedule_batch import (
    Modality,
    MultimodalDataItem,
    MultimodalProcessorOutput,
)
from sglang.srt.models.llava import LlavaForConditionalGeneration
from sglang.srt.multimodal.processors.base_processor import BaseMultimodalProcessor
from transformers import AutoImageProcessor

FORMATS = ("PNG", "JPEG", "WEBP")
_IMAGE = re.compile(
    r"data:application/octet-stream;offset=(\d{1,9});length=(\d{1,9});base64,([A-Za-z0-9+/=]+)"
)
"""As ``astraflow_plugin_sglang.images`` writes them."""


class PlacedImageProcessor(BaseMultimodalProcessor):  # type: ignore[misc]
    """In the place of SGLang's for this architecture."""

    models: ClassVar = [LlavaForConditionalGeneration]  # known by the name of the class
    prefer_tokenized_input = True

    def __init__(self, hf_config: Any, server_args: Any, *more: Any, **keys: Any) -> None:
        super().__init__(hf_config, server_args, *more, **keys)
        self._token: int = hf_config.image_token_index
        self._images = AutoImageProcessor.from_pretrained(
            server_args.model_path, backend="pil", local_files_only=True
        )

    async def process_mm_data_async(
        self, image_data: Any, input_text: Any, *_: Any, **__: Any
    ) -> MultimodalProcessorOutput:
        """Pixels and place of each image. Raises :class:`ValueError`, which refuses the request."""
        if not isinstance(input_text, list):
            raise ValueError("images need token ids with their placeholders, not text")
        items = [
            await asyncio.to_thread(self._item, input_text, str(each)) for each in image_data or ()
        ]
        return MultimodalProcessorOutput(
            mm_items=items, input_ids=input_text, im_token_id=self._token
        )

    def _item(self, tokens: list[int], text: str) -> MultimodalDataItem:
        found = _IMAGE.fullmatch(text)
        if found is None:
            raise ValueError(f"an image is not written as {_IMAGE.pattern}: {text[:80]!r}")
        start, length = int(found[1]), int(found[2])
        if length < 1 or tokens[start : start + length] != [self._token] * length:
            raise ValueError(
                f"an image at token {start} needs {length} placeholders, token {self._token}, there"
            )
        file = base64.b64decode(found[3], validate=True)
        try:
            picture = Image.open(io.BytesIO(file), formats=FORMATS).convert("RGB")
        except (OSError, SyntaxError, EOFError) as error:
            raise ValueError(f"an image of {len(file)} bytes is damaged: {error}") from error
        pixels = self._images(images=[picture], return_tensors="pt")["pixel_values"]
        item = MultimodalDataItem(
            modality=Modality.IMAGE, feature=pixels, offsets=[(start, start + length - 1)]
        )
        item.set_identity(hashlib.sha256(file).digest())
        return item
