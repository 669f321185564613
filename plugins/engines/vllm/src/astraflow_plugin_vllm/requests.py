"""Requests as ``/inference/v1/generate`` takes them, and its answers as results."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, cast

import msgspec
import numpy as np
import numpy.typing as npt

from astraflow_core.errors import AstraFlowError
from astraflow_core.types import GenerateRequest, GenerateResult
from astraflow_serving.tokens import TokenId, choice_fields, single_stops
from astraflow_wire.decoding import UNDECODABLE

PATH = "/inference/v1/generate"
REASONS = ("stop", "length", "abort")


class _Logprob(msgspec.Struct):
    logprob: float


class _Logprobs(msgspec.Struct):
    content: list[_Logprob] | None = None


class _Span(msgspec.Struct):
    version: str
    start: int
    end: int


class _Choice(msgspec.Struct):
    token_ids: list[TokenId] = []
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None
    weight_versions: list[_Span] | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice]
    prompt_logprobs: list[dict[str, _Logprob] | None] | None = None


_answer = msgspec.json.Decoder(_Answer)


def external_id(identifier: str) -> str:
    """What the server calls a request that we call ``identifier``."""
    return f"generate-tokens-{identifier}"


def body_of(
    identifier: str,
    request: GenerateRequest,
    eos: tuple[int, ...],
    salt: str,
    stream: bool,
    adapter: str | None = None,
    features: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The body of a request. Stop tokens are ours, so the server is asked to ignore all others; ``salt``
    keeps the prefix cache of one version apart from that of another. ``adapter`` is the server's name for the
    adapter to use, ``features`` are the images (:mod:`astraflow_plugin_vllm.images`)."""
    sampling = request.sampling
    return {
        **_beside(adapter, features),
        "request_id": identifier,
        "token_ids": request.prompt.tolist(),
        "stream": stream,
        "cache_salt": salt,
        "sampling_params": {
            "max_tokens": sampling.max_tokens,
            **choice_fields(sampling),
            "logprobs": 0,
            "detokenize": False,
            "ignore_eos": True,
            "stop_token_ids": single_stops(sampling, eos),
        },
    }


def _beside(adapter: str | None, features: Mapping[str, Any] | None) -> dict[str, Any]:
    named = {} if adapter is None else {"model": adapter}
    return named if features is None else {**named, "features": features}


def body_of_score(
    identifier: str,
    tokens: npt.NDArray[np.int32],
    adapter: str | None = None,
    features: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A request for the log-probs of ``tokens``. It samples one more token, which is discarded; log-probs
    of a prompt are computed again, so nothing is read from the prefix cache."""
    return {
        **_beside(adapter, features),
        "request_id": identifier,
        "token_ids": tokens.tolist(),
        "sampling_params": {
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprobs": 0,
            "detokenize": False,
            "ignore_eos": True,
        },
    }


def read_scores(answer: bytes, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
    """Raw log-prob of each token given those before it: float32 ``[T]``, the first is 0."""
    found = _read(answer).prompt_logprobs or []
    if len(found) != len(tokens):
        raise AstraFlowError(f"vLLM scored {len(found)} tokens, not the {len(tokens)} given")
    scores = np.zeros(len(tokens), dtype=np.float32)
    for position, (token, given) in enumerate(zip(tokens.tolist(), found, strict=True)):
        if given is not None:
            if (entry := given.get(str(token))) is None:
                raise AstraFlowError(f"vLLM scored another token than {token} at {position}")
            scores[position] = entry.logprob
    return scores


def _read(answer: bytes) -> _Answer:
    try:
        return _answer.decode(answer)
    except UNDECODABLE as error:
        raise AstraFlowError(
            f"vLLM's answer to {PATH} is not as expected ({error}): {answer[:200]!r}"
        ) from error


def _version(span: _Span) -> int:
    if not re.fullmatch("[0-9]{1,9}", span.version):
        raise AstraFlowError(
            f"vLLM sampled with a version {span.version!r:.80} that it was not given"
        )
    return int(span.version)


class SampledPieces:
    """What the server has sampled for one request, whole or in pieces."""

    def __init__(self, request: GenerateRequest) -> None:
        self.tokens: list[int] = []
        self.reason: str | None = None
        self._request = request
        self._logprobs: list[float] = []
        self._spans: list[_Span] = []

    def take(self, answer: bytes) -> None:
        """Add an answer, or a piece of it. Raises :class:`AstraFlowError` if it is none."""
        for choice in _read(answer).choices:
            self.tokens += choice.token_ids
            if choice.logprobs is not None:
                self._logprobs += [entry.logprob for entry in choice.logprobs.content or ()]
            self._spans = choice.weight_versions or self._spans
            self.reason = choice.finish_reason or self.reason

    def result(self, cut: int | None = None) -> GenerateResult:
        """All of it; with ``cut``, the first ``cut`` tokens, which a stop sequence ends."""
        count = len(self.tokens)
        if self.reason not in REASONS:
            raise AstraFlowError(f"vLLM ended a request with {self.reason!r}")
        lengths = [span.end - span.start for span in self._spans]
        if len(self._logprobs) != count or sum(lengths) != count or min(lengths, default=0) < 0:
            raise AstraFlowError(
                f"vLLM returned {count} tokens, {len(self._logprobs)} log-probs and versions of "
                f"{[(s.version, s.start, s.end) for s in self._spans]}"
            )
        versions = np.repeat(
            np.array([_version(span) for span in self._spans], dtype=np.int32), lengths
        )
        reason = cast("Literal['stop', 'length', 'abort']", self.reason)
        return GenerateResult(
            self._request.id,
            np.array(self.tokens[:cut], dtype=np.int32),
            np.array(self._logprobs[:cut], dtype=np.float32),
            versions[:cut],
            reason if cut is None else "stop",
        )
