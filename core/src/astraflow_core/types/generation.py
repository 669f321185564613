"""Requests to an engine and their results: token ids in, with the images that some stand for, and token ids out."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

FinishReason = Literal["stop", "length", "abort"]
RoutedExperts = npt.NDArray[np.uint8] | npt.NDArray[np.uint16]
"""The experts that a model chose: ``[tokens, layers, top_k]`` ids, for each token that the model read, and so for the hidden
state from which the token after it was sampled. ``layers`` are those with experts, in their order."""


@dataclass(frozen=True, slots=True)
class ImageSpan:
    """An image, for which the tokens ``start`` … ``start + length - 1`` stand: placeholders, which no policy sampled.

    ``data`` is an image file (PNG, JPEG or WebP) and ``digest`` its SHA-256 in hex; images with the same digest share it.
    """

    start: int
    length: int
    digest: str
    data: bytes | memoryview = field(repr=False, compare=False)

    @property
    def end(self) -> int:
        """Index after its last token."""
        return self.start + self.length

    def moved(self, by: int) -> ImageSpan:
        """The same image ``by`` tokens later."""
        return replace(self, start=self.start + by) if by else self


Images = tuple[ImageSpan, ...]
"""Ascending by their start, without overlaps."""


def images_between(images: Images, start: int, end: int, to: int) -> Images:
    """Those that begin from token ``start`` to before ``end``, as if token ``start`` were number ``to``."""
    first = bisect_left(images, start, key=lambda image: image.start)
    after = bisect_left(images, end, key=lambda image: image.start)
    return tuple(image.moved(to - start) for image in images[first:after])


def images_of_rows(images: Images, offsets: npt.NDArray[np.int64], rows: Sequence[int]) -> Images:
    """Those of the ``rows`` of a batch, one after the other; row ``i`` has the tokens from ``offsets[i]`` to before
    ``offsets[i + 1]``."""
    taken: list[ImageSpan] = []
    place = 0
    for row in rows:
        start, end = int(offsets[row]), int(offsets[row + 1])
        taken += images_between(images, start, end, place)
        place += end - start
    return tuple(taken)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen.

    ``temperature`` 0 is greedy. ``top_k`` 0 and ``top_p`` 1 and ``min_p`` 0 keep every token. ``stop_token_ids`` end a sequence and
    belong to it; the engine adds the model's own end-of-sequence ids unless ``ignore_eos``. ``stop_sequences`` are token-id
    sequences that end it when they appear."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop_token_ids: tuple[int, ...] = ()
    stop_sequences: tuple[tuple[int, ...], ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class LogprobSemantics:
    """What the log-probs of an engine mean.

    ``temperature``: of the distribution after division of the logits by the sampling temperature (else of the raw logits).
    ``truncation``: renormalised over what top-p, top-k and min-p kept (else over the whole vocabulary). Greedy requests report the
    raw distribution in either case."""

    temperature: bool
    truncation: bool


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One sequence to generate.

    ``prompt``: int32 ``[P]``, P ≥ 1. ``session`` routes related requests to the same cache, lower ``priority`` is served first.
    With ``pinned_version`` every token must come from that version: an engine that serves another one raises
    :class:`astraflow_core.errors.WrongVersion`. Each needs a capability: with ``routing`` (``router_replay``) the result has the
    ``routed_experts``; ``images`` (``images``) stand where their placeholders are in the prompt; ``adapter`` (``adapters``) names
    the one to sample with, whose version the tokens carry."""

    id: str
    prompt: npt.NDArray[np.int32]
    sampling: Sampling
    session: str = ""
    priority: int = 0
    pinned_version: int | None = None
    routing: bool = False
    images: Images = ()
    adapter: str = ""


@dataclass(frozen=True, slots=True)
class GenerateResult:
    """What was sampled: ``tokens`` int32 ``[T]``, ``logprobs`` float32 ``[T]`` under the engine's declared
    semantics, ``versions`` int32 ``[T]`` of the weights that sampled each token. The stop token, if one
    ended the sequence, is the last token. ``routed_experts``, if the request asked for ``routing`` and T > 0: ``[P + T - 1,
    layers, top_k]`` of the prompt and the tokens, without the last, which the model did not read."""

    id: str
    tokens: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]
    versions: npt.NDArray[np.int32]
    finish_reason: FinishReason
    routed_experts: RoutedExperts | None = None


def routing_dtype(experts: int) -> np.dtype[Any]:
    """The dtype of ids of that many experts: uint8 if it leaves room for :func:`not_recorded`."""
    return np.dtype(np.uint8 if experts < 256 else np.uint16)


def not_recorded(dtype: npt.DTypeLike) -> int:
    """The value of each expert id of a token whose choices were not recorded: all bits set."""
    return int(np.iinfo(dtype).max)
