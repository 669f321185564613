"""Whatever a server answers is a result or an error of ours."""

from __future__ import annotations

import json

import numpy as np

from astraflow_core.errors import AstraFlowError
from astraflow_core.types import GenerateRequest, Sampling
from astraflow_plugin_openai.completions import TokenCompletion, read_scores
from astraflow_testing.damage import assert_refused_or_read, damaged

PROMPT = np.array([5, 9, 3], dtype=np.int32)
EVENT = {"token_ids": [5, 6], "logprobs": {"token_logprobs": [-0.5, -1.0]}, "finish_reason": "stop"}
SCORES = [None, {"9": {"logprob": -1.5}}, {"3": {"logprob": -2.5}}]


def test_damaged_events_and_scores_are_errors_or_results() -> None:
    def read(event: bytes) -> None:
        completion = TokenCompletion(GenerateRequest("r", PROMPT, Sampling(4)), (1,))
        completion.take(event)
        completion.result(False)

    def score(answer: bytes) -> None:
        read_scores(answer, PROMPT)

    event = json.dumps({"choices": [EVENT]}).encode()
    scored = json.dumps({"choices": [{"prompt_logprobs": SCORES}]}).encode()
    read(event)
    score(scored)
    assert_refused_or_read(read, damaged([event], "json", count=400), AstraFlowError)
    assert_refused_or_read(score, damaged([scored], "json", count=400), AstraFlowError)
