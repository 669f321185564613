"""Calls and tokens that an agent may use in an episode."""

from __future__ import annotations

import asyncio

import pytest
from gateway_agents import USER, Agent, played

from astraflow_gateway.episode import BUDGET_SPENT, Budget
from astraflow_testing.scripted_policies import FailedAnswer


def test_an_agent_without_end_is_answered_by_an_ordinary_message() -> None:
    async def play(agent: Agent) -> None:
        for _ in range(2):
            await agent.chat(USER)
        whole = await agent.chat(USER)
        assert whole["choices"][0]["message"]["content"] == BUDGET_SPENT
        assert whole["choices"][0]["finish_reason"] == "stop"

    episode = played(lambda policy, text: "again", play, budget=Budget(2, 10_000))
    assert sum(int(each.loss_mask.sum()) for each in episode.sequences()) == 2 * len("again") + 2
    episode = played(lambda policy, text: "again", play, budget=Budget(100, 8))
    assert sum(int(each.loss_mask.sum()) for each in episode.sequences()) == 8


def test_an_agent_that_takes_too_long_gets_an_error_and_keeps_its_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1000.0]
    monkeypatch.setattr("astraflow_gateway.episode.monotonic", lambda: now[0])

    async def play(agent: Agent) -> None:
        for passed_s, said in ((59.9, "again"), (0.1, BUDGET_SPENT)):
            now[0] += passed_s
            reply = await agent.chat(USER, nonce=passed_s)
            assert reply["choices"][0]["message"]["content"] == said

    episode = played(lambda policy, text: "again", play, budget=Budget(100, 10_000, 60.0))
    assert len(episode.sequences()) == 1 and episode.metrics()["agent_over_budget"] == 1


def test_requests_at_once_share_one_budget() -> None:
    async def play(agent: Agent) -> None:
        replies = await asyncio.gather(*(agent.chat(USER, nonce=n) for n in range(4)))
        said = [reply["choices"][0]["message"]["content"] for reply in replies]
        assert sorted(said) == sorted(["again", "ag", BUDGET_SPENT, BUDGET_SPENT])

    episode = played(lambda policy, text: "again", play, budget=Budget(100, 8))
    assert sum(len(call.result.tokens) for call in episode.graph.calls) == 8


def test_a_request_that_fails_gives_its_part_of_the_budget_back() -> None:
    async def play(agent: Agent) -> None:
        await agent.post("/v1/chat/completions", {"model": "p", "messages": [USER]})
        answered = await agent.chat(USER, nonce=1)
        assert answered["choices"][0]["message"]["content"] == "word"

    played([FailedAnswer("lost"), "word"], play, budget=Budget(100, 8))
