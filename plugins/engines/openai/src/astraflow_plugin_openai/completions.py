"""Requests as ``/completions`` takes them, and its answers as results: by token ids, or by text."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from astraflow_core.errors import AstraFlowError, UserError
from astraflow_core.types import GenerateRequest, GenerateResult
from astraflow_core.types.generation import FinishReason
from astraflow_serving.tokens import (
    TokenId,
    choice_fields,
    first_stop,
    long_stops,
    single_stops,
)
from astraflow_wire.decoding import UNDECODABLE

PATH = "/completions"


class _Logprob(msgspec.Struct):
    logprob: float


class _Logprobs(msgspec.Struct):
    token_logprobs: list[float | None] = []


class _Choice(msgspec.Struct):
    text: str = ""
    token_ids: list[TokenId] | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None
    prompt_logprobs: list[dict[str, _Logprob] | None] | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice] = []


_answer = msgspec.json.Decoder(_Answer)


def choices_of(answer: bytes) -> list[_Choice]:
    """Decode an answer or an event of a stream; raises :class:`AstraFlowError` if it is none."""
    try:
        return _answer.decode(answer).choices
    except UNDECODABLE as error:
        raise AstraFlowError(
            f"the server's answer to {PATH} is not as expected ({error}): {answer[:200]!r}"
        ) from error


class PendingCompletion(Protocol):
    """One request under way. ``count`` are the tokens that are known so far."""

    @property
    def count(self) -> int:
        """Tokens so far."""

    def body(self) -> dict[str, Any]:
        """What is sent, less the model's name."""

    def take(self, event: bytes) -> bool:
        """Add a piece of the answer; whether nothing more is wanted."""

    def result(self, aborted: bool) -> GenerateResult:
        """All of it."""


class TokenCompletion:
    """By token ids: vLLM's extensions of the interface. Stop tokens are ours, so the server is asked to
    ignore all others; stop sequences of several tokens are searched for here."""

    def __init__(self, request: GenerateRequest, eos: tuple[int, ...]) -> None:
        self._request = request
        self._eos = eos
        self._stops = long_stops(request.sampling)
        self._tokens: list[int] = []
        self._logprobs: list[float] = []
        self._reason: str | None = None
        self._cut: int | None = None

    @property
    def count(self) -> int:
        """Tokens so far."""
        return len(self._tokens) if self._cut is None else self._cut

    def body(self) -> dict[str, Any]:
        """The request body, with ``return_token_ids``."""
        sampling = self._request.sampling
        return {
            "prompt": self._request.prompt.tolist(),
            "max_tokens": sampling.max_tokens,
            **choice_fields(sampling),
            "logprobs": 0,
            "stream": True,
            "return_token_ids": True,
            "ignore_eos": True,
            "stop_token_ids": single_stops(sampling, self._eos),
        }

    def take(self, event: bytes) -> bool:
        """Add what an event brings."""
        for choice in choices_of(event):
            before = len(self._tokens)
            self._tokens += choice.token_ids or ()
            if choice.logprobs is not None:
                self._logprobs += [value or 0.0 for value in choice.logprobs.token_logprobs]
            self._reason = choice.finish_reason or self._reason
            if self._cut is None and self._stops:
                self._cut = first_stop(self._tokens, before, self._stops)
        return self._cut is not None

    def result(self, aborted: bool) -> GenerateResult:
        """Raises :class:`AstraFlowError` unless each token has its log-prob."""
        if len(self._logprobs) != len(self._tokens) or (
            self._reason == "length" and not self._tokens
        ):
            raise AstraFlowError(
                f"the server returned {len(self._tokens)} token ids and {len(self._logprobs)} log-probs: "
                "if it does not support `return_token_ids`, set tokens = 'text'"
            )
        return _result(
            self._request,
            self._tokens[: self._cut],
            np.array(self._logprobs[: self._cut], np.float32),
            _reason(self._reason, aborted, self._cut),
        )


class TextCompletion:
    """By text, for servers that know no token ids. The completion is tokenized here, so its tokens are not
    those that the server sampled: they have no log-probs (NaN) and nothing can be trained on them."""

    def __init__(self, request: GenerateRequest, eos: tuple[int, ...], texts: Texts) -> None:
        sampling = request.sampling
        if sampling.top_k or sampling.min_p or sampling.ignore_eos:
            raise ValueError(
                f"request {request.id!r}: OpenAI's interface has no top_k, min_p and ignore_eos; "
                "do without, or use a server that supports them, with tokens = 'ids'"
            )
        self._request = request
        self._eos = eos
        self._texts = texts
        stops = [(token,) for token in single_stops(sampling, eos)]
        self._stops = [*stops, *long_stops(sampling)]
        self._text = ""
        self._tokens: list[int] = []
        self._reason: str | None = None
        self._cut: int | None = None

    @property
    def count(self) -> int:
        """Tokens so far."""
        return len(self._tokens) if self._cut is None else self._cut

    def body(self) -> dict[str, Any]:
        """The request body, with the fields of OpenAI's API only."""
        sampling = self._request.sampling
        body: dict[str, Any] = {
            "prompt": self._texts.decode(self._request.prompt.tolist()),
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "stream": True,
        }
        return body if sampling.top_p == 1 else {**body, "top_p": sampling.top_p}

    def take(self, event: bytes) -> bool:
        """Add what an event brings. More text may change the tokens of what came before."""
        for choice in choices_of(event):
            self._text += choice.text
            self._reason = choice.finish_reason or self._reason
        self._tokens = self._texts.encode(self._text)[: self._request.sampling.max_tokens]
        self._cut = first_stop(self._tokens, 0, self._stops)
        return self._cut is not None

    def result(self, aborted: bool) -> GenerateResult:
        """The end-of-sequence token, which is not part of the text, is restored where the server stopped on its own."""
        tokens, reason = self._tokens[: self._cut], _reason(self._reason, aborted, self._cut)
        if reason == "stop" and self._cut is None:
            if len(tokens) < self._request.sampling.max_tokens:
                tokens = [*tokens, *self._eos[:1]]
            else:  # as many tokens here as were allowed, though fewer at the server
                reason = "length"
        return _result(self._request, tokens, np.full(len(tokens), np.nan, np.float32), reason)


class Texts:
    """The tokenizer of a model's folder."""

    def __init__(self, folder: Path) -> None:
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise UserError(
                f"tokens = 'text' needs a tokenizer, and {folder} has no tokenizer.json"
            )
        self._tokenizer = Tokenizer.from_file(str(file))

    def decode(self, tokens: list[int]) -> str:
        """With the texts of special tokens."""
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=False)
        return text

    def encode(self, text: str) -> list[int]:
        """Nothing is added."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def body_of_score(tokens: npt.NDArray[np.int32]) -> dict[str, Any]:
    """A request for the log-probs of ``tokens`` (vLLM's ``prompt_logprobs``); one token is sampled
    after them and discarded."""
    return {
        "prompt": tokens.tolist(),
        "max_tokens": 1,
        "temperature": 0.0,
        "prompt_logprobs": 0,
        "return_token_ids": True,
    }


def read_scores(answer: bytes, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
    """Raw log-prob of each token given those before it: float32 ``[T]``, the first is 0."""
    found = [choice.prompt_logprobs or [] for choice in choices_of(answer)]
    if len(found) != 1 or len(found[0]) != len(tokens):
        raise AstraFlowError(
            f"the server returned no log-probs of the {len(tokens)} tokens of a prompt: it does not support "
            "`prompt_logprobs`, so it cannot score"
        )
    scores = np.zeros(len(tokens), dtype=np.float32)
    for position, (token, given) in enumerate(zip(tokens.tolist(), found[0], strict=True)):
        if given is not None:
            if (entry := given.get(str(token))) is None:
                raise AstraFlowError(
                    f"the server scored another token than {token} at position {position}"
                )
            scores[position] = entry.logprob
    return scores


def _reason(said: str | None, aborted: bool, cut: int | None) -> FinishReason:
    if cut is not None:
        return "stop"
    if aborted:
        return "abort"
    if said == "stop":
        return "stop"
    if said == "length":
        return "length"
    raise AstraFlowError(f"the server ended a request with finish_reason {said!r}")


def _result(
    request: GenerateRequest,
    tokens: list[int],
    logprobs: npt.NDArray[np.float32],
    reason: FinishReason,
) -> GenerateResult:
    """A frozen model has one version, 0."""
    return GenerateResult(
        request.id,
        np.array(tokens, dtype=np.int32),
        logprobs,
        np.zeros(len(tokens), dtype=np.int32),
        reason,
    )
