"""Whatever a server answers is a result or an error of ours."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import numpy as np

from astraflow_core.errors import AstraFlowError
from astraflow_core.types import GenerateRequest, Sampling
from astraflow_plugin_sglang.generation import SampledStream, read_scores
from astraflow_plugin_sglang.routes import server_info
from astraflow_plugin_sglang.updates import post_update
from astraflow_serving.http import ServerClient
from astraflow_testing.damage import assert_refused_or_read, damaged

PROMPT = np.array([5, 9, 3], dtype=np.int32)
META = {
    "completion_tokens": 2,
    "finish_reason": {"type": "stop"},
    "output_token_logprobs": [[-0.5, 5, None], [-1.0, 6, None]],
    "input_token_logprobs": [[None, 5, None], [-1.0, 9, None], [-2.0, 3, None]],
    "weight_version": "3",
    "weight_versions": [{"version": "3", "start": 0, "end": 2}],
}


def test_damaged_events_and_scores_are_errors_or_results() -> None:
    def read(event: bytes) -> None:
        sampled = SampledStream(GenerateRequest("r", PROMPT, Sampling(4)), (1,))
        sampled.take(event)
        sampled.partial()
        sampled.result()

    def score(answer: bytes) -> None:
        read_scores(answer, PROMPT, 27)

    event = json.dumps({"meta_info": META}).encode()
    read(event)
    score(event)
    assert_refused_or_read(read, damaged([event], "json", count=400), AstraFlowError)
    assert_refused_or_read(score, damaged([event], "json", count=400), AstraFlowError)


class Saying:
    """The client of a server that gives one answer to everything."""

    url = "http://server"

    def __init__(self, answer: bytes) -> None:
        self.answer = answer

    async def get(self, path: str) -> bytes:
        return self.answer

    async def post(self, path: str, body: dict[str, Any]) -> bytes:
        return self.answer


def test_damaged_answers_to_control_are_errors_or_results() -> None:
    def update(answer: bytes) -> None:
        asyncio.run(post_update(cast(ServerClient, Saying(answer)), "/end_weight_update", {}))

    answer = b'{"success": true, "message": ""}'
    update(answer)
    assert_refused_or_read(update, damaged([answer], "json", count=200), AstraFlowError)
    for odd in (b"[]", b"\xff", b"[" * 100_000, b"<html>"):
        assert asyncio.run(server_info(cast(ServerClient, Saying(odd)))) == {}
