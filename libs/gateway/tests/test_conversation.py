"""Conversations that a workflow holds by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_templates import TEMPLATES

from astraflow_core.errors import WorkflowError
from astraflow_core.types import RunInfo, Sampling
from astraflow_gateway.conversation import Conversation, Episodes, NoMoreTurns
from astraflow_gateway.episode import Budget, Episode
from astraflow_testing.scripted_policies import FailedAnswer, ScriptedPolicies

QWEN, THINKING = TEMPLATES[0], TEMPLATES[1]
USER = {"role": "user", "content": "what is 1 + 22?"}
TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {}}},
}
DESCRIBED = {"type": "function", "function": {**TOOL["function"], "description": "Add."}}  # type: ignore[dict-item]
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
AMPLE = Budget(100, 10_000)


def played(
    says: Any,
    play: Callable[[Episode], Awaitable[Any]],
    template: Any = QWEN,
    budget: Budget = AMPLE,
    frozen: tuple[str, ...] = (),
    **more: Any,
) -> Episode:
    """The episode in which ``play`` asks the policy ``p``."""

    async def run() -> Episode:
        policies = ScriptedPolicies(
            ["p"], frozen, says, Sampling(max_tokens=400), template.tokenizer(), **more
        )
        run = RunInfo("r", 0, 1, 1, ("p",), Path("."), frozen)
        episode = Episodes(run, budget).begin(policies.engines())
        await play(episode)
        assert all(each.over for each in policies.asked)
        return episode

    return asyncio.run(run())


def test_a_conversation_with_tools_is_one_sequence_with_a_reward_for_each_turn() -> None:
    async def play(episode: Episode) -> None:
        chat = Conversation(episode, "p", [USER], [TOOL])
        first = await chat.reply()
        assert first.finish == "tool_calls" and first.reply.content == "so:"
        (call,) = first.reply.tool_calls
        assert (call.name, call.arguments) == ("add", '{"a": 1}')
        chat.answer_tool(call, "23")
        chat.reward(first, 0.25)
        chat.reward(first, 0.25)
        second = await chat.reply()
        assert second.reply.content == "it is 23" and second.finish == "stop"
        chat.reward(second, 1)
        assert [message["role"] for message in chat.messages] == [
            "user", "assistant", "tool", "assistant",
        ]  # fmt: skip

    episode = played({"p": [f"so:\n{CALL}", "it is 23"]}, play)
    (sequence,) = episode.sequences()
    ends = np.flatnonzero(np.diff(sequence.loss_mask.astype(int), append=0) == -1).tolist()
    assert sequence.turn_rewards == dict(zip(ends, [0.5, 1.0], strict=True))
    assert int(sequence.loss_mask.sum()) == len(f"so:\n{CALL}") + len("it is 23") + 2
    assert episode.metrics() == {
        "agent_calls": 2, "agent_tokens": sequence.loss_mask.sum(), "prompts_continued": 1,
    }  # fmt: skip


def test_a_turn_that_the_template_rewrites_keeps_its_reward() -> None:
    async def play(episode: Episode) -> None:
        chat = Conversation(episode, "p", [USER])
        for reward in (1.0, 2.0):
            chat.reward(await chat.reply(), reward)
            chat.say("user", "go on")

    episode = played({"p": ["<think>\nhm\n</think>\n\n23", "yes"]}, play, THINKING)
    first, second = episode.sequences()
    assert episode.metrics()["prompts_template"] == 1
    assert first.turn_rewards == {len(first.tokens) - 1: 1.0}
    assert second.turn_rewards == {len(second.tokens) - 1: 2.0}


def test_conversations_of_one_policy_that_say_the_same_are_kept_apart() -> None:
    async def play(episode: Episode) -> None:
        chats = [Conversation(episode, "p", [USER]) for _ in range(3)]
        for _ in range(2):
            for chat in chats:
                await chat.reply()
                chat.say("user", "sure?")

    episode = played(lambda *_: "yes", play)
    assert [int(s.loss_mask.sum()) for s in episode.sequences()] == [8, 8, 8]
    assert episode.metrics()["prompts_continued"] == 3


def test_a_frozen_engine_is_asked_and_not_trained() -> None:
    async def play(episode: Episode) -> None:
        judge = Conversation(episode, "judge", [USER])
        judge.reward(await judge.reply(), 1.0)
        await Conversation(episode, "p", [USER]).reply()

    episode = played({"p": ["a"], "judge": ["good"]}, play, frozen=("judge",))
    assert [sequence.policy for sequence in episode.sequences()] == ["p"]
    assert [completion.policy for completion in episode.completions] == ["p"]


@pytest.mark.parametrize(
    ("budget", "question", "reason"),
    [
        (Budget(1, 1000), "1", "budget"),
        (Budget(9, 4), "1", "budget"),
        (AMPLE, "x" * (1 << 21), "context"),
    ],
)
def test_a_conversation_that_is_over_says_why(budget: Budget, question: str, reason: str) -> None:
    async def play(episode: Episode) -> None:
        chat = Conversation(episode, "p", [{"role": "user", "content": question}])
        with pytest.raises(NoMoreTurns, match=r"budget|context length") as over:
            await chat.reply()
            assert len(chat.turns[0].call.result.tokens) <= budget.tokens
            await chat.reply()
        assert over.value.reason == reason

    played(lambda *_: "a word", play, budget=budget)


def test_what_cannot_be_asked_is_refused() -> None:
    async def play(episode: Episode) -> None:
        with pytest.raises(WorkflowError, match="expected an object with role and content"):
            Conversation(episode, "p", [{"role": "user", "content": None}])
        parts = [{"type": "text"}]
        with pytest.raises(
            WorkflowError, match=r"message 0: a part of content is \{'type': 'text'\}"
        ):
            await Conversation(episode, "p", [{"role": "user", "content": parts}]).reply()
        with pytest.raises(WorkflowError, match=r"policy 'p': the chat template of .* rejected"):
            await Conversation(episode, "p", [USER]).reply()
        with pytest.raises(Exception, match="out of memory"):
            await Conversation(episode, "p", [USER], [DESCRIBED]).reply()

    hermes_3 = TEMPLATES[3]  # whose template wants tools
    played(lambda *_: FailedAnswer("out of memory"), play, hermes_3)


def test_what_is_sampled_ends_with_the_caller() -> None:
    async def play(episode: Episode) -> None:
        asking = asyncio.create_task(Conversation(episode, "p", [USER]).reply())
        while not episode.metrics()["agent_calls"]:
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait({asking})
        assert asking.cancelled()

    played({}, play, holds=0)
