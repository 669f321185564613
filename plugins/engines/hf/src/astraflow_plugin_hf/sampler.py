"""Chooses the tokens of a step, and keeps of each sequence its tokens, their log-probs and versions.

The continuous batching of transformers 5.23 samples all requests by one rule and has no min-p. It hands the
logits of a step to a list of processors, and before that their requests to each; so one processor of ours, the only
one, samples here and leaves a single token possible.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessor,
)

from astraflow_core.types import GenerateRequest, GenerateResult, LogprobSemantics
from astraflow_core.types.generation import FinishReason, RoutedExperts, not_recorded
from astraflow_serving.tokens import first_stop

SEMANTICS = LogprobSemantics(temperature=True, truncation=False)


@dataclass(eq=False)
class Record:
    """What has been sampled for one request; ``stops`` are token-id sequences that end it. ``reason`` is set
    once it has ended, after which nothing is added."""

    request: GenerateRequest
    identifier: str
    stops: Sequence[tuple[int, ...]]
    ended: Callable[[], object]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    reason: FinishReason | None = None
    experts: RoutedExperts | None = None
    """Of the prompt and of all that may be sampled but the last token, as far as they have been read."""

    def note_experts(self, first: int, experts: RoutedExperts) -> None:
        """Those of the tokens from number ``first`` on, ``[n, layers, top_k]``."""
        if self.experts is None:
            room = len(self.request.prompt) + self.request.sampling.max_tokens - 1
            empty = not_recorded(experts.dtype)
            self.experts = np.full((room, *experts.shape[1:]), empty, experts.dtype)
        self.experts[first : first + len(experts)] = experts[: len(self.experts) - first]

    def result(self) -> GenerateResult:
        """All of it; it has ended."""
        assert self.reason is not None
        return GenerateResult(
            self.request.id,
            np.array(self.tokens, dtype=np.int32),
            np.array(self.logprobs, dtype=np.float32),
            np.array(self.versions, dtype=np.int32),
            self.reason,
            self._routed(),
        )

    def _routed(self) -> RoutedExperts | None:
        if self.experts is None or not self.tokens:
            return None
        return self.experts[: len(self.request.prompt) + len(self.tokens) - 1]


class Sampler(ContinuousBatchingLogitsProcessor):  # type: ignore[misc]
    """``version`` is stamped on what is sampled from now on, ``routed`` records ask for experts. Called by the thread that decodes; other threads
    add and remove records."""

    supported_kwargs: dict[str, type] = {}  # noqa: RUF012 (as the base class declares it)
    ignored_kwargs: tuple[str, ...] = ()

    def __init__(self, seed: int, device: torch.device) -> None:
        self.version = 0
        self.tokens = 0
        self.routed = 0
        self._records: dict[str, Record] = {}
        self._step: list[Record | None] = []
        self._lock = threading.Lock()
        self._generator = torch.Generator(device).manual_seed(seed)

    def enter(self, record: Record) -> None:
        """Take a record in."""
        with self._lock:
            self._records[record.identifier] = record
            self.routed += record.request.routing

    def leave(self, record: Record) -> None:
        """Let a record go."""
        with self._lock:
            if self._records.pop(record.identifier, None) is not None:
                self.routed -= record.request.routing

    def note_experts(self, identifier: str, first: int, experts: RoutedExperts) -> None:
        """See :meth:`Record.note_experts`; of no request that did not ask for them."""
        with self._lock:
            record = self._records.get(identifier)
        if record is not None and record.request.routing:
            record.note_experts(first, experts)

    def end(self, record: Record, reason: FinishReason) -> None:
        """End a record now, unless it has ended."""
        with self._lock:
            self._end(record, reason)

    def _end(self, record: Record, reason: FinishReason) -> None:
        if record.reason is None:
            record.reason = reason
            record.ended()

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        """This one does not use the tensor that belongs to a processor."""
        int32_tensor.zero_()

    def prepare_tensor_args(self, requests_with_new_token: list[Any]) -> torch.Tensor:
        """Remember whose logits come next."""
        with self._lock:
            self._step = [self._records.get(r.state.request_id) for r in requests_with_new_token]
        return torch.zeros(len(requests_with_new_token), dtype=torch.int32)

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        """Sample a token from each row of logits ``[n, V]``; in what is returned only that one is possible."""
        with self._lock:
            # A prompt that is only part through has no logits yet, but a row, behind those that have.
            step = [*self._step, *[None] * (len(scores) - len(self._step))]
        tokens, logprobs = self._draw(scores, step)
        with self._lock:
            for record, token, logprob in zip(
                step, tokens.tolist(), logprobs.tolist(), strict=True
            ):
                if record is not None and record.reason is None:
                    self._add(record, token, logprob)
        only = torch.full_like(scores, -torch.inf)
        return only.scatter_(1, tokens[:, None], 0.0)

    def _add(self, record: Record, token: int, logprob: float) -> None:
        record.tokens.append(token)
        record.logprobs.append(logprob)
        record.versions.append(self.version)
        self.tokens += 1
        count = len(record.tokens)
        if first_stop(record.tokens, count - 1, record.stops) is not None:
            self._end(record, "stop")
        elif count >= record.request.sampling.max_tokens:
            self._end(record, "length")

    def _draw(
        self, logits: torch.Tensor, step: Sequence[Record | None]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens int64 ``[n]``, and log-probs float32 ``[n]`` after temperature and before truncation."""
        samplings = [None if record is None else record.request.sampling for record in step]

        def column(values: list[float]) -> torch.Tensor:
            return torch.tensor(values, device=logits.device)[:, None]

        heat = column([s.temperature if s is not None else 0.0 for s in samplings])
        greedy = heat == 0
        scaled = logits / torch.where(greedy, torch.ones_like(heat), heat)
        logprobs = scaled.log_softmax(-1)
        top_p = column([s.top_p if s is not None else 1.0 for s in samplings])
        top_k = column([float(s.top_k) if s is not None else 0.0 for s in samplings])
        min_p = column([s.min_p if s is not None else 0.0 for s in samplings])
        probs = logprobs.exp()
        if bool((top_p < 1).any() | (top_k > 0).any() | (min_p > 0).any()):
            probs = truncated(probs, top_p, top_k, min_p)
        drawn = torch.multinomial(probs, 1, generator=self._generator)
        tokens = torch.where(greedy, logits.argmax(-1, keepdim=True), drawn)
        return tokens[:, 0], logprobs.gather(1, tokens)[:, 0]


def truncated(
    probs: torch.Tensor, top_p: torch.Tensor, top_k: torch.Tensor, min_p: torch.Tensor
) -> torch.Tensor:
    """``probs`` ``[n, V]`` with what top-k, then top-p among what is left, and min-p drop set to 0; not
    renormalised. ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 (each ``[n, 1]``) drop nothing."""
    ranked, order = probs.sort(-1, descending=True)
    rank = torch.arange(probs.shape[1], device=probs.device)[None]
    kept = (top_k == 0) | (rank < top_k)
    mass = torch.where(kept, ranked, 0.0)
    before = mass.cumsum(-1) - mass
    kept &= (before < top_p * mass.sum(-1, keepdim=True)) | (top_p >= 1) | (rank == 0)
    kept &= ranked >= min_p * ranked[:, :1]
    return torch.zeros_like(probs).scatter_(1, order, torch.where(kept, ranked, 0.0))
