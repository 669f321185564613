"""A sequence that is being sampled, and the choice of a token."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from astraflow_core.types import GenerateRequest, GenerateResult, Sampling

Floats = npt.NDArray[np.float64]


@dataclass
class SampledSequence:
    """A request and what was sampled for it so far. ``reason`` is empty until it has ended."""

    request: GenerateRequest
    began: bool
    reason: Literal["", "stop", "length", "abort"] = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def append(self, token: int, logprob: float, version: int, ends: Set[int]) -> None:
        """Add a token; ``ends`` are the model's own ends of a sequence."""
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)
        sampling = self.request.sampling
        stops = token in sampling.stop_token_ids or (token in ends and not sampling.ignore_eos)
        for stop in sampling.stop_sequences:
            stops = stops or (len(stop) > 0 and tuple(self.tokens[-len(stop) :]) == stop)
        if stops:
            self.reason = "stop"
        elif len(self.tokens) == sampling.max_tokens:
            self.reason = "length"

    def result(self) -> GenerateResult:
        """Of a sequence that has ended."""
        assert self.reason
        return GenerateResult(
            self.request.id,
            np.array(self.tokens, np.int32),
            np.array(self.logprobs, np.float32),
            np.array(self.versions, np.int32),
            self.reason,
        )


def choose(logits: Floats, sampling: Sampling, random: np.random.Generator) -> tuple[int, float]:
    """A token and its log-prob over the whole vocabulary, after division by the temperature unless that is 0."""
    logprobs = _log_softmax(logits / (sampling.temperature or 1.0))
    if sampling.temperature == 0:
        token = int(logits.argmax())
    else:
        token = int(random.choice(len(logits), p=_kept(np.exp(logprobs), sampling)))
    return token, float(logprobs[token])


def _log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max()
    result: Floats = shifted - np.log(np.exp(shifted).sum())
    return result


def _kept(probs: Floats, sampling: Sampling) -> Floats:
    """What top-k, then top-p, then min-p leave of the distribution ``[V]``; its sum is 1."""
    order = np.argsort(-probs, kind="stable")
    ranked = probs[order]
    if sampling.top_k:
        ranked[sampling.top_k :] = 0.0
    if sampling.top_p < 1:
        before = np.cumsum(ranked) - ranked
        ranked[(before >= sampling.top_p * ranked.sum()) & (np.arange(len(ranked)) > 0)] = 0.0
    ranked[ranked < sampling.min_p * ranked[0]] = 0.0
    result = np.zeros_like(probs)
    result[order] = ranked / ranked.sum()
    return result
