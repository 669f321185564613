"""Whatever a server answers is a result or an error of ours."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

from astraflow_core.errors import AstraFlowError, PreflightError
from astraflow_core.types import GenerateRequest, Sampling
from astraflow_plugin_openai.completions import TokenCompletion, read_scores
from astraflow_plugin_openai.config import OpenAIConfig
from astraflow_plugin_openai.engine import OpenAIEngine
from astraflow_testing.conformance.subject import context
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


class Saying:
    """The client of a server that gives one answer to everything."""

    url = "http://server"

    def __init__(self, answer: bytes) -> None:
        self.answer = answer

    async def get(self, path: str) -> bytes:
        return self.answer


@pytest.mark.parametrize(
    "answer", [b"[]", b'{"data": [{"id": "\xff"}]}', b'{"x": ' + b"[" * 100_000, b"<html>", b'{"data": [{}]}']
)  # fmt: skip
def test_a_server_that_lists_something_else_is_named(answer: bytes, tmp_path: Path) -> None:
    engine = OpenAIEngine(OpenAIConfig(url="http://server"), context("engine", tmp_path))
    with pytest.raises(PreflightError, match="no OpenAI-compatible server lists its models"):
        asyncio.run(engine._find(Saying(answer)))  # type: ignore[arg-type]
