"""The stand-in with a model that reads images: what it makes of ``image_data``, and of scores where images are."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from astraflow_core.types import Images, ImageSpan, Sampling
from astraflow_serving.model_folder import reads_images
from astraflow_testing.conformance._models import qwen3
from astraflow_testing.conformance._models.images import llava
from astraflow_testing.tiny_decoder import DecodedSequence, Drawn, TinyDecoder

WRITTEN = re.compile(r"data:application/octet-stream;offset=(\d+);length=(\d+);base64,(.+)")


class PictureDecoder(TinyDecoder):
    """Computes each distribution anew, from all tokens and images; ``folder`` is the model's."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept = tempfile.TemporaryDirectory()
        self._loaded = 0
        super().__init__(folder)
        self.config = self.config["text_config"]

    def load(self, file: Path) -> None:
        """Keep the file: the one that is given goes away."""
        self._loaded += 1
        self._file = Path(self._kept.name) / f"{self._loaded}.safetensors"
        shutil.copy(file, self._file)

    def seen(self, tokens: list[int], images: Images) -> qwen3.Floats:
        """Logits ``[N, V]`` after each of ``tokens``."""
        return llava.logits(self._folder, self._file, np.array(tokens, np.int32), images)


class PicturedSequence(DecodedSequence):
    """Tokens of which some are places of images."""

    def __init__(self, decoder: PictureDecoder, tokens: list[int], images: Images) -> None:
        super().__init__(decoder, tokens)
        self._pictures, self._images = decoder, images

    def next(self, sampling: Sampling) -> Drawn:
        drawn = self._pictures.draw(self._pictures.seen(self.tokens, self._images)[-1], sampling)
        self.tokens.append(drawn.token)
        return drawn

    def logprobs(self) -> qwen3.Floats:
        """Raw ones ``[N, V]`` after each token."""
        return qwen3.log_softmax(self._pictures.seen(self.tokens, self._images))

    def forget(self) -> None:
        """Nothing is kept."""

    def scores(self) -> list[float]:
        rows = self.logprobs()
        return [float(row[token]) for row, token in zip(rows, self._scored_ids()[1:], strict=False)]

    def _scored_ids(self) -> list[int]:
        """An id made of an image is beyond the vocabulary, and cut to its last."""
        ids = np.array(self.tokens)
        for image in self._images:
            ids[image.start : image.end] = self._pictures.config["vocab_size"] - 1
        found: list[int] = ids.tolist()
        return found


def images_of(body: dict[str, Any]) -> Images:
    """As our processor reads them there."""
    images = []
    for text in body.get("image_data", ()):
        found = WRITTEN.fullmatch(text)
        assert found is not None, text[:80]
        data = base64.b64decode(found[3], validate=True)
        digest = hashlib.sha256(data).hexdigest()
        images.append(ImageSpan(int(found[1]), int(found[2]), digest, data))
    return tuple(images)


def decoder_of(folder: Path) -> TinyDecoder:
    """Of the model in ``folder``, which may read images."""
    return PictureDecoder(folder) if reads_images(folder) else TinyDecoder(folder)


def sequence_of(decoder: TinyDecoder, body: dict[str, Any]) -> DecodedSequence:
    """The prompt of a request."""
    if isinstance(decoder, PictureDecoder):
        return PicturedSequence(decoder, body["input_ids"], images_of(body))
    assert "image_data" not in body
    return decoder.sequence(body["input_ids"])
