"""Fields of a request that ask for more than the gateway lets an agent choose."""

from __future__ import annotations

from typing import Any

import pytest
from gateway_agents import USER, Agent, played

CHAT: dict[str, Any] = {"messages": [USER]}
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/responses": {"input": "what is 1 + 22?"},
    "/v1/messages": {**CHAT, "max_tokens": 100},
    "/inference/v1/generate": {"token_ids": [1, 2, 3]},
}
"""A request that each route answers."""


@pytest.mark.parametrize("route", ROUTES)
def test_a_seed_changes_nothing_of_what_is_sampled(
    route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent sends the same one in all episodes of a group, which would all sample the same."""
    plain = ROUTES[route]
    seeded: dict[str, Any] = {**plain, "seed": 7}
    if "token_ids" in plain:
        seeded = {**plain, "sampling_params": {"seed": 7}}

    samplings = []

    async def play(agent: Agent) -> None:
        engine = agent.episode.engines["p"]
        generate = engine.generate

        async def noting(prompt: Any, sampling: Any) -> Any:
            samplings.append(sampling)
            return await generate(prompt, sampling)

        monkeypatch.setattr(engine, "generate", noting)
        for body in (plain, seeded, seeded):
            answer = await agent.post(route, body)
            assert answer.status_code == 200, answer.text

    episode = played(["one", "two", "three"], play)
    assert len(samplings) == 3, "an equal seed makes no retry"
    assert samplings[0] == samplings[1] == samplings[2]
    assert len(episode.sequences()) == 3


REFUSED = (
    ("/v1/chat/completions", {"logprobs": True, "top_logprobs": 2}, "top_logprobs"),
    ("/v1/responses", {"top_logprobs": 2}, "top_logprobs"),
    ("/inference/v1/generate", {"sampling_params": {"logprobs": 2}}, "sampling_params.logprobs"),
    (
        "/inference/v1/generate",
        {"sampling_params": {"prompt_logprobs": 0}},
        "sampling_params.prompt_logprobs",
    ),
)


def test_logprobs_of_tokens_that_were_not_sampled_are_refused_by_their_field() -> None:
    async def play(agent: Agent) -> None:
        for route, more, field in REFUSED:
            answer = await agent.post(route, {**ROUTES[route], **more})
            error = answer.json()["error"]
            assert answer.status_code == 400, (route, more)
            assert error["type"] == "invalid_request_error" and error["param"] == field
            assert "only the log-prob of each sampled token" in error["message"]
        for route, more in (
            ("/v1/chat/completions", {"logprobs": True, "top_logprobs": 0}),
            ("/inference/v1/generate", {"sampling_params": {"logprobs": 1}}),
        ):
            answer = await agent.post(route, {**ROUTES[route], **more})
            assert answer.status_code == 200, answer.text
            assert answer.json()["choices"][0]["logprobs"]["content"]

    played(["one", "two"], play)
