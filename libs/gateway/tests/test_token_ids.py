"""Token ids in and token ids out: the two endpoints that other systems use."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gateway_agents import Agent, played


def test_tokens_in_and_tokens_out() -> None:
    async def play(agent: Agent) -> None:
        body = {"model": "p", "token_ids": [104, 105], "sampling_params": {"max_tokens": 4}}
        whole = (await agent.post("/inference/v1/generate", body)).json()
        (choice,) = whole["choices"]
        assert choice["token_ids"] == list(b"hell") and choice["finish_reason"] == "length"
        assert choice["logprobs"]["content"][0]["token"] == f"token_id:{ord('h')}"
        more = {"token_ids": [104, 105, *b"hell", 33]}
        assert (await agent.post("/inference/v1/generate", more)).status_code == 200

    (sequence,) = played(["hello", "you"], play).sequences()
    assert sequence.tokens.tolist() == [*b"hihell!you", 256]


def test_tokens_in_and_several_replies_out() -> None:
    async def play(agent: Agent) -> None:
        body = {"token_ids": [104, 105], "sampling_params": {"n": 2}}
        whole = (await agent.post("/inference/v1/generate", body)).json()
        assert [each["index"] for each in whole["choices"]] == [0, 1]
        assert {bytes(each["token_ids"][:3]) for each in whole["choices"]} == {b"one", b"two"}

    assert len(played(["one", "two"], play).sequences()) == 2


def test_a_stream_of_token_ids_says_what_the_whole_reply_does() -> None:
    async def play(agent: Agent) -> None:
        body = {"token_ids": [104, 105], "sampling_params": {"n": 2}}
        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        response = await agent.post("/inference/v1/generate", asked)
        assert response.headers["content-type"].startswith("text/event-stream")
        *events, last, end = response.text.removesuffix("\n\n").split("\n\n")
        assert end == "data: [DONE]"
        chunks = [json.loads(each.removeprefix("data: ")) for each in (*events, last)]
        (recorded,) = agent.episode._made.values()
        for index, (chunk, choice) in enumerate(zip(chunks[:-1], recorded, strict=True)):
            (told,) = chunk["choices"]
            assert choice.result is not None
            assert (told["index"], told["finish_reason"]) == (index, "stop")
            assert told["token_ids"] == choice.result.tokens.tolist()
            logprobs = [each["logprob"] for each in told["logprobs"]["content"]]
            assert logprobs == choice.result.logprobs.tolist()
            assert chunk["usage"] is None
        assert {bytes(each["choices"][0]["token_ids"][:3]) for each in chunks[:-1]} == {
            b"one",
            b"two",
        }
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"] == {
            "prompt_tokens": 2,
            "completion_tokens": 8,
            "total_tokens": 10,
        }
        assert len({each["request_id"] for each in chunks}) == 1

    assert len(played(["one", "two"], play).sequences()) == 2


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": [-1]}, "token_ids"),
        ({"token_ids": [1], "stream": "x"}, "stream"),
        ({"token_ids": [1], "sampling_params": {"max_tokens": 0}}, "max_tokens"),
        ({"token_ids": [1], "sampling_params": {"n": 0}}, "sampling_params.n"),
        ({"token_ids": [1], "sampling_params": {"n": 65}}, "sampling_params.n"),
        ({"token_ids": "x"}, "token_ids"),
    ],
)
def test_token_ids_that_cannot_be_are_refused(body: Any, field: str) -> None:
    async def play(agent: Agent) -> None:
        response = await agent.post("/inference/v1/generate", body)
        assert (response.status_code, response.json()["error"]["param"]) == (400, field)

    played([], play)


def test_token_ids_that_the_model_has_not_are_the_fault_of_the_request() -> None:
    def says(policy: str, text: str) -> str:
        raise ValueError("request 0 has the token id 401, outside of the model's 0 to 400")

    async def play(agent: Agent) -> None:
        response = await agent.post("/inference/v1/generate", {"token_ids": [1]})
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, "token_ids")
        assert "token id 401" in error["message"]

    assert played(says, play).failure is None
