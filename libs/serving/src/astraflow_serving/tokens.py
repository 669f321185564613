"""Checks on requests before they go anywhere, and what is done to sampled tokens afterwards."""

from __future__ import annotations

import sys
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
MOST_STOPS = 64
"""Stop ids of a request, and stop sequences."""
MOST_STOP_TOKENS = 256
"""Of one stop sequence."""
_MOST_TOP_K = 2**31 - 1


def check_request(request: GenerateRequest, context_length: int, vocabulary: int) -> None:
    """Raise :class:`ValueError` if ``request`` asks for nothing, does not fit, or has a field outside of what engines take: a stop
    that is no token of the ``vocabulary``, more or longer stops than ``MOST_STOPS`` and ``MOST_STOP_TOKENS``, or a parameter out of
    its range. ``top_k`` may exceed the vocabulary: it keeps every token then."""
    what, sampling = f"request {request.id!r}", request.sampling
    if sampling.max_tokens < 1:
        raise ValueError(f"{what}: max_tokens must be at least 1")
    _check_sampling(what, sampling, vocabulary)
    check_tokens(what, request.prompt, sampling.max_tokens, context_length, vocabulary)


def _check_sampling(what: str, sampling: Sampling, vocabulary: int) -> None:
    finite = sys.float_info.max
    ranges: tuple[tuple[str, float, float], ...] = (
        ("top_k", 0, _MOST_TOP_K), ("temperature", 0, finite), ("top_p", 0, 1), ("min_p", 0, 1),
    )  # fmt: skip
    for field, least, most in ranges:
        value = getattr(sampling, field)
        if not least <= value <= most:  # also NaN
            raise ValueError(f"{what}: {field} is {value}; expected {least} to {most}")
    for field in ("stop_token_ids", "stop_sequences"):
        count = len(getattr(sampling, field))
        if count > MOST_STOPS:
            raise ValueError(f"{what}: {field} has {count} entries; expected at most {MOST_STOPS}")
    _check_stops(f"{what}: stop_token_ids", sampling.stop_token_ids, vocabulary)
    for stop in sampling.stop_sequences:
        if len(stop) > MOST_STOP_TOKENS:
            raise ValueError(
                f"{what}: stop_sequences has one of {len(stop)} tokens; expected at most {MOST_STOP_TOKENS}"
            )
        _check_stops(f"{what}: stop_sequences", stop, vocabulary)


def _check_stops(what: str, tokens: Sequence[int], vocabulary: int) -> None:
    for token in tokens:
        if not 0 <= token < vocabulary:
            raise ValueError(
                f"{what} has the token id {token}; expected ids of the model, 0 to {vocabulary - 1}"
            )


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
