"""Checks on requests before they go anywhere, and what is done to sampled tokens afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt

from astraflow_core.errors import UserError
from astraflow_core.types import GenerateRequest, GenerateResult, Images, Sampling
from astraflow_wire.images.model import TYPE, ImageModel

TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
"""A token id in a server's answer."""


def check_request(request: GenerateRequest, context_length: int, vocabulary: int) -> None:
    """Raise :class:`ValueError` if ``request`` asks for nothing or does not fit."""
    if request.sampling.max_tokens < 1:
        raise ValueError(f"request {request.id!r}: max_tokens must be at least 1")
    what, more = f"request {request.id!r}", request.sampling.max_tokens
    check_tokens(what, request.prompt, more, context_length, vocabulary)


def check_tokens(
    what: str, tokens: npt.NDArray[np.int32], more: int, context_length: int, vocabulary: int
) -> None:
    """Raise :class:`ValueError` unless ``tokens`` and ``more`` to sample fit; ``what`` names them."""
    if not len(tokens):
        raise ValueError(f"{what} has no tokens; at least one is needed")
    if len(tokens) + more > context_length:
        raise ValueError(
            f"{what}: {len(tokens)} tokens + {more} to sample exceed the context length of "
            f"{context_length}"
        )
    if tokens.min() < 0 or tokens.max() >= vocabulary:
        strange = int(tokens.min() if tokens.min() < 0 else tokens.max())
        raise ValueError(
            f"{what} has the token id {strange}, outside of the model's 0 to {vocabulary - 1}: the tokenizer in "
            "its folder belongs to another model, or the workflow produced an invalid id; `astraflow doctor FILE` "
            "checks tokenizers"
        )


def check_images(
    engine: str,
    folder: Path,
    model: ImageModel | None,
    tokens: npt.NDArray[np.int32],
    images: Images,
) -> None:
    """Raise :class:`UserError` if the model in ``folder`` reads no images (``model`` is ``None``), and :class:`ValueError` if
    where one of ``images`` stands are other ``tokens`` than the placeholders that it reads."""
    if model is None:
        raise UserError(
            f"engine {engine!r}: the model in {folder} reads no images: name one of type {TYPE!r}, with a processor"
        )
    for image in images:
        there = tokens[image.start : image.end]
        alike = len(there) == image.length == model.length
        if not alike or (there != model.token).any():
            raise ValueError(
                f"an image at token {image.start} has {image.length} tokens; expected {model.length} placeholders, "
                f"token {model.token}"
            )


def choice_fields(sampling: Sampling) -> dict[str, float]:
    """How tokens are chosen, in the fields that most servers have for it; greedy needs no more than that."""
    if sampling.temperature == 0:
        return {"temperature": 0.0}
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
    }


def single_stops(sampling: Sampling, eos: tuple[int, ...]) -> list[int]:
    """Every single token that ends a sequence; ``eos`` are the model's own."""
    sequences = (stop[0] for stop in sampling.stop_sequences if len(stop) == 1)
    return sorted({*sampling.stop_token_ids, *sequences, *(() if sampling.ignore_eos else eos)})


def long_stops(sampling: Sampling) -> list[tuple[int, ...]]:
    """The stop sequences of several tokens."""
    return [stop for stop in sampling.stop_sequences if len(stop) > 1]


def first_stop(tokens: Sequence[int], before: int, stops: Sequence[tuple[int, ...]]) -> int | None:
    """Where the first of the sequences ``stops`` ends among ``tokens`` (its last token included), if it
    ends after the first ``before`` of them."""
    for end in range(before + 1, len(tokens) + 1):
        for stop in stops:
            if len(stop) <= end and tuple(tokens[end - len(stop) : end]) == stop:
                return end
    return None


def nothing(request: GenerateRequest) -> GenerateResult:
    """The result of a request that was ended before it ran."""
    empty = np.zeros(0, dtype=np.int32)
    return GenerateResult(request.id, empty, np.zeros(0, dtype=np.float32), empty, "abort")
