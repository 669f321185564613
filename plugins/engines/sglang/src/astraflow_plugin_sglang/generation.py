"""Requests as ``/generate`` takes them, and its answers as results."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from astraflow_core.errors import AstraFlowError
from astraflow_core.types import GenerateRequest, GenerateResult, Images, LogprobSemantics
from astraflow_core.types.generation import FinishReason
from astraflow_plugin_sglang.images import image_data
from astraflow_serving.http import ServerRefused
from astraflow_serving.tokens import TokenId, first_stop, long_stops, single_stops
from astraflow_wire.decoding import UNDECODABLE

PATH = "/generate"
SEMANTICS = LogprobSemantics(temperature=True, truncation=False)
"""SGLang's sampler takes log-probs after dividing by the temperature and before top-k, top-p and min-p
(unless its environment says SGLANG_RETURN_ORIGINAL_LOGPROB)."""

_Entry = tuple[float | None, TokenId, str | None]


class _Span(msgspec.Struct):
    version: str
    start: int
    end: int


class _Finish(msgspec.Struct):
    type: str
    message: str | None = None
    status_code: int | None = None


class _Meta(msgspec.Struct):
    completion_tokens: int = 0
    finish_reason: _Finish | None = None
    output_token_logprobs: list[_Entry] = []
    input_token_logprobs: list[_Entry] = []
    input_token_ids_logprobs: list[list[_Entry] | None] = []
    weight_version: str | None = None
    weight_versions: list[_Span] = []


class _Answer(msgspec.Struct):
    meta_info: _Meta | None = None
    error: Any = None


_answer = msgspec.json.Decoder(_Answer, strict=False)


def read(answer: bytes) -> _Meta:
    """The part of an answer that counts. Raises :class:`ServerRefused` if it says that the request failed, which an
    event of a stream does after the status 200; :class:`AstraFlowError` if it is not an answer."""
    try:
        decoded = _answer.decode(answer)
    except UNDECODABLE as error:
        raise AstraFlowError(
            f"SGLang's answer to {PATH} is not as expected ({error}): {answer[:200]!r}"
        ) from error
    meta = decoded.meta_info
    if meta is None:
        code = decoded.error.get("code") if isinstance(decoded.error, dict) else None
        raise ServerRefused(code if isinstance(code, int) else 400, _failed(answer))
    reason = meta.finish_reason
    if reason is not None and reason.type == "abort" and (reason.status_code or 0) >= 400:
        assert reason.status_code is not None
        raise ServerRefused(reason.status_code, _failed(reason.message))
    return meta


def _failed(said: object) -> str:
    return f"POST {PATH}: {str(said)[:300]}"


def body_of(identifier: str, request: GenerateRequest) -> dict[str, Any]:
    """The body of a request. ``ignore_eos`` makes SGLang ignore stop tokens of every sort, so all stops are
    looked for here too (:class:`SampledStream`)."""
    sampling = request.sampling
    truncation: dict[str, float] = {"top_p": 1.0, "top_k": -1, "min_p": 0.0}
    if sampling.temperature > 0:
        truncation = {
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            "min_p": sampling.min_p,
        }
    return {
        "input_ids": request.prompt.tolist(),
        "rid": identifier,
        "sampling_params": {
            "max_new_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            **truncation,
            "ignore_eos": sampling.ignore_eos,
            "stop_token_ids": list(sampling.stop_token_ids),
        },
        "return_logprob": True,
        "stream": True,
        **_seen(request.images),
    }


def _seen(images: Images) -> dict[str, Any]:
    return {"image_data": image_data(images)} if images else {}


class SampledStream:
    """What the server has sampled for one request. ``since`` is the version that it served when the request was
    sent, if that is known.

    Only the last event says which version sampled which tokens. The events before carry the version that is served
    when they are made, of which only their last token is known for sure to be."""

    def __init__(
        self, request: GenerateRequest, eos: tuple[int, ...], since: int | None = None
    ) -> None:
        self._request = request
        stops = [(token,) for token in single_stops(request.sampling, eos)]
        self._stops = [*stops, *long_stops(request.sampling)]
        self._since = None if since is None else str(since)
        self._tokens: list[int] = []
        self._logprobs: list[float] = []
        self._spans: list[_Span] = []
        self._served: list[_Span] = []
        self._sure: int | None = None
        self._cut: int | None = None
        self.finish: _Finish | None = None

    @property
    def count(self) -> int:
        """Tokens so far."""
        return len(self._tokens) if self._cut is None else self._cut

    @property
    def stopped(self) -> bool:
        """Whether a stop is complete, so that no more is wanted."""
        return self._cut is not None

    def take(self, answer: bytes) -> None:
        """Take an event, which repeats what came before or, as the server was started, does not. Raises
        :class:`ServerRefused` if it says that the request failed."""
        meta = read(answer)
        new = meta.output_token_logprobs
        before = len(self._tokens)
        if len(new) == meta.completion_tokens:
            new = new[before:]
        self._tokens += [token for _, token, _ in new]
        self._logprobs += [logprob or 0.0 for logprob, _, _ in new]
        self._spans = meta.weight_versions or self._spans
        self._record_version(meta.weight_version, before)
        self.finish = meta.finish_reason or self.finish
        if self._cut is None:
            self._cut = first_stop(self._tokens, before, self._stops)

    def _record_version(self, version: str | None, before: int) -> None:
        """Remember under which version the tokens after the first ``before`` came."""
        last = self._served[-1].version if self._served else self._since
        new = len(self._tokens) - before
        if new and self._sure is None and (version is None or (new > 1 and version != last)):
            self._sure = before
        if self._served and version == last:
            self._served[-1].end += new
        elif version is not None:
            self._served.append(_Span(version, before, before + new))

    def result(self) -> GenerateResult:
        """All of it; raises :class:`AstraFlowError` unless each token has its version."""
        lengths = [span.end - span.start for span in self._spans]
        if sum(lengths) != len(self._tokens) or min(lengths, default=0) < 0:
            raise AstraFlowError(
                f"SGLang returned {len(self._tokens)} tokens and versions of "
                f"{[(s.version, s.start, s.end) for s in self._spans]}"
            )
        return self._result(self._spans, self.count, self._reason())

    def partial(self) -> GenerateResult:
        """What came until now, for a request that is not waited for any longer. Tokens that came in one event with
        a change of version are left out, and those after them, since it is unknown which version sampled them."""
        count = self.count if self._sure is None else min(self.count, self._sure)
        return self._result(self._served, count, "stop" if count == self._cut else "abort")

    def _result(self, spans: list[_Span], count: int, reason: FinishReason) -> GenerateResult:
        try:
            numbers = np.array([int(span.version) for span in spans], dtype=np.int32)
        except (ValueError, OverflowError) as error:
            raise AstraFlowError(
                f"SGLang sampled with a version that no engine gave it ({error}); name each server behind the "
                "router in the key url"
            ) from error
        versions = np.repeat(numbers, [span.end - span.start for span in spans])
        return GenerateResult(
            self._request.id,
            np.array(self._tokens[:count], dtype=np.int32),
            np.array(self._logprobs[:count], dtype=np.float32),
            versions[:count],
            reason,
        )

    def _reason(self) -> FinishReason:
        if self._cut is not None:
            return "stop"
        said = None if self.finish is None else self.finish.type
        if said == "stop":
            return "stop"
        if said == "length":
            return "length"
        if said == "abort":
            return "abort"
        raise AstraFlowError(f"SGLang ended a request with finish_reason {said!r}")


def body_of_score(
    identifier: str,
    tokens: npt.NDArray[np.int32],
    images: Images = (),
    placeholder: int | None = None,
) -> dict[str, Any]:
    """A request for the log-probs of ``tokens``; it samples one more token, which is discarded. Where ``images`` are SGLang scores
    an id that it made of the image, so the log-prob of the ``placeholder`` is asked for everywhere."""
    more = {**_seen(images), "token_ids_logprob": [placeholder]} if images else {}
    return {
        "input_ids": tokens.tolist(),
        "rid": identifier,
        "sampling_params": {"max_new_tokens": 1, "temperature": 0.0, "ignore_eos": True},
        "return_logprob": True,
        "logprob_start_len": 0,
        **more,
    }


def read_scores(
    answer: bytes, tokens: npt.NDArray[np.int32], vocabulary: int, images: Images = ()
) -> npt.NDArray[np.float32]:
    """Raw log-prob of each token given those before it: float32 ``[T]``, the first is 0. SGLang writes 0 for the last id of
    the vocabulary there, and the log-prob is right."""
    meta = read(answer)
    found = _with_placeholders(meta, tokens, images) if images else meta.input_token_logprobs

    def written(token: int) -> int:
        return token if token < vocabulary - 1 else 0

    if [written(token) for _, token, _ in found] != [written(each) for each in tokens.tolist()]:
        raise AstraFlowError(f"SGLang scored {len(found)} tokens, not the {len(tokens)} given")
    scores = np.array([logprob or 0.0 for logprob, _, _ in found], dtype=np.float32)
    scores[:1] = 0
    return scores


def _with_placeholders(meta: _Meta, tokens: npt.NDArray[np.int32], images: Images) -> list[_Entry]:
    found, asked = list(meta.input_token_logprobs), meta.input_token_ids_logprobs
    if len(asked) != len(found) or max(image.end for image in images) > len(found):
        raise AstraFlowError(
            f"SGLang scored {len(found)} tokens and the placeholder at {len(asked)}; expected both everywhere"
        )
    for image in images:
        for place in range(image.start, image.end):
            given = asked[place]  # none of the first token
            found[place] = given[0] if given else (None, int(tokens[place]), None)
    return found
