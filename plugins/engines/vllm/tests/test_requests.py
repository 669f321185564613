"""Requests and answers in the words of vLLM's ``/inference/v1/generate``."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from astraflow_core.errors import AstraFlowError
from astraflow_core.types import GenerateRequest, Sampling
from astraflow_plugin_vllm.requests import SampledPieces, body_of, read_scores
from astraflow_serving.tokens import first_stop, nothing
from astraflow_testing.damage import assert_refused_or_read, damaged

PROMPT = np.array([5, 9, 3], dtype=np.int32)


def asked(sampling: Sampling) -> dict[str, Any]:
    request = GenerateRequest("r", PROMPT, sampling)
    parameters: dict[str, Any] = body_of("id", request, (1,), "salt", False)["sampling_params"]
    return parameters


def choice(tokens: list[int], spans: list[tuple[str, int, int]] | None, reason: str | None) -> Any:
    return {
        "token_ids": tokens,
        "finish_reason": reason,
        "logprobs": {
            "content": [{"token_id": t, "logprob": -t / 8, "rank": 1, "top_logprobs": []} for t in tokens]
        },
        "weight_versions": None
        if spans is None
        else [{"version": v, "start": s, "end": e} for v, s, e in spans],
    }  # fmt: skip


def answer(*choices: Any) -> bytes:
    return json.dumps({"request_id": "x", "choices": choices, "usage": None}).encode()


def test_sampling_is_said_in_full_and_stops_are_ours() -> None:
    sampling = Sampling(7, 0.5, 0.9, 3, 0.1, stop_token_ids=(4,), stop_sequences=((6,), (7, 8)))
    assert asked(sampling) == {
        "max_tokens": 7, "temperature": 0.5, "top_p": 0.9, "top_k": 3, "min_p": 0.1, "logprobs": 0,
        "detokenize": False, "ignore_eos": True, "stop_token_ids": [1, 4, 6],
    }  # fmt: skip
    assert asked(replace(sampling, ignore_eos=True))["stop_token_ids"] == [4, 6]
    greedy = asked(replace(sampling, temperature=0))
    assert greedy["temperature"] == 0 and not {"top_p", "top_k", "min_p"} & greedy.keys()


def test_an_answer_becomes_arrays_with_the_version_of_each_token() -> None:
    sampled = SampledPieces(GenerateRequest("r", PROMPT, Sampling(4)))
    sampled.take(answer(choice([2, 4, 6, 8], [("3", 0, 1), ("12", 1, 4)], "length")))
    result = sampled.result()
    assert (result.id, result.finish_reason) == ("r", "length")
    assert (result.tokens.dtype, result.tokens.tolist()) == (np.int32, [2, 4, 6, 8])
    assert (result.logprobs.dtype, result.logprobs.tolist()) == (
        np.float32,
        [-0.25, -0.5, -0.75, -1],
    )
    assert (result.versions.dtype, result.versions.tolist()) == (np.int32, [3, 12, 12, 12])


def test_pieces_add_up_and_a_cut_is_a_stop() -> None:
    sampled = SampledPieces(GenerateRequest("r", PROMPT, Sampling(9)))
    sampled.take(answer(choice([2], None, None)))
    sampled.take(answer(choice([4, 6], None, None)))
    sampled.take(answer(choice([], [("0", 0, 2), ("1", 2, 3)], "abort")))
    assert sampled.result().finish_reason == "abort"
    cut = sampled.result(2)
    assert (cut.tokens.tolist(), cut.versions.tolist()) == ([2, 4], [0, 0])
    assert len(cut.logprobs) == 2 and cut.finish_reason == "stop"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (answer(choice([2, 4], [("0", 0, 1)], "stop")), "2 tokens"),
        (answer(choice([2], None, "stop")), "1 tokens"),
        (answer({**choice([2], [("0", 0, 1)], "stop"), "logprobs": None}), "0 log-probs"),
        (answer(choice([2], [("0", 0, 1)], "error")), "'error'"),
        (b'{"choices": 3}', "not as expected"),
        (b"<html>", "not as expected"),
    ],
)
def test_an_answer_that_is_none_is_refused(given: bytes, said: str) -> None:
    sampled = SampledPieces(GenerateRequest("r", PROMPT, Sampling(4)))
    with pytest.raises(AstraFlowError, match=said):
        sampled.take(given)
        sampled.result()


def test_a_request_that_was_ended_before_it_sampled_anything() -> None:
    request = GenerateRequest("r", PROMPT, Sampling(4))
    sampled = SampledPieces(request)
    sampled.take(answer(choice([], None, "abort")))
    for result in (sampled.result(), nothing(request)):
        assert (len(result.tokens), result.finish_reason) == (0, "abort")
        assert (result.versions.dtype, result.logprobs.dtype) == (np.int32, np.float32)


def test_scores_are_those_of_the_given_tokens() -> None:
    given = [None, {"9": {"logprob": -1.5}, "2": {"logprob": -0.1}}, {"3": {"logprob": -2.5}}]
    scores = read_scores(json.dumps({"choices": [], "prompt_logprobs": given}).encode(), PROMPT)
    assert (scores.dtype, scores.tolist()) == (np.float32, [0, -1.5, -2.5])


@pytest.mark.parametrize(
    ("tokens", "before", "stops", "end"),
    [
        ([1, 2, 3, 4], 0, [(2, 3)], 3),
        ([1, 2, 3, 4], 2, [(2, 3)], 3),  # begun in an earlier piece
        ([1, 2, 3, 4], 3, [(2, 3)], None),  # ended in one: it was looked at then
        ([1, 2, 3, 4], 0, [(3, 4), (2, 3, 4), (1, 2)], 2),
        ([1, 2], 0, [(1, 2, 3)], None),
        ([1, 2], 2, [(1, 2)], None),
    ],
)
def test_where_a_stop_sequence_ends(
    tokens: list[int], before: int, stops: list[tuple[int, ...]], end: int | None
) -> None:
    assert first_stop(tokens, before, stops) == end


def test_damaged_answers_are_errors_or_results() -> None:
    def read(given: bytes) -> None:
        sampled = SampledPieces(GenerateRequest("r", PROMPT, Sampling(4)))
        sampled.take(given)
        sampled.result()

    def score(given: bytes) -> None:
        read_scores(given, PROMPT)

    scored = [None, {"9": {"logprob": -1.5}, "2": {"logprob": -0.1}}, {"3": {"logprob": -2.5}}]
    scores = json.dumps({"choices": [], "prompt_logprobs": scored}).encode()
    sound = answer(choice([5, 6], [("3", 0, 2)], "stop"))
    read(sound)
    score(scores)
    assert_refused_or_read(read, damaged([sound], "json", count=400), AstraFlowError)
    assert_refused_or_read(score, damaged([scores], "json", count=400), AstraFlowError)
