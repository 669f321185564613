from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from pydantic import ValidationError

from astraflow_contrib_single_turn.config import SingleTurnConfig
from astraflow_contrib_single_turn.workflow import SingleTurn
from astraflow_core.errors import PreflightError, WorkflowError
from astraflow_core.types import (
    Completion,
    ComponentContext,
    GenerateResult,
    Prompt,
    RunInfo,
    Sequence,
    Trajectory,
)


class EchoEngine:
    """Samples the prompt's tokens in reverse; counts what it is asked to encode."""

    policy, version = "solver", 3

    def __init__(self, finish_reason: str = "stop") -> None:
        self.finish_reason = finish_reason
        self.encoded: list[Any] = []
        self.tokenizer = self

    def encode(self, text: str) -> npt.NDArray[np.int32]:
        self.encoded.append(text)
        return np.array([ord(character) for character in text], dtype=np.int32)

    def render(self, messages: Any) -> npt.NDArray[np.int32]:
        self.encoded.append(messages)
        text = "".join(f"<{m['role']}>{m['content']}" for m in messages)
        return np.array([ord(character) for character in text], dtype=np.int32)

    async def generate(self, prompt: npt.NDArray[np.int32]) -> GenerateResult:
        tokens = prompt[::-1].copy()
        zeros = np.zeros(len(tokens), np.float32)
        versions = np.full(len(tokens), 3, np.int32)
        return GenerateResult("r", tokens, zeros, versions, self.finish_reason)  # type: ignore[arg-type]

    def sequence(self, prompt: npt.NDArray[np.int32], result: GenerateResult) -> Sequence:
        tokens = np.concatenate([prompt, result.tokens])
        mask = np.arange(len(tokens)) >= len(prompt)
        floats = np.zeros(len(tokens), np.float32)
        return Sequence("solver", tokens, mask, floats, np.where(mask, 3, -1).astype(np.int32))

    def completion(self, result: GenerateResult) -> Completion:
        text = "".join(map(chr, result.tokens))
        return Completion("solver", text, result.tokens, result.finish_reason)


def workflow(policies: tuple[str, ...] = ("solver",), **keys: Any) -> SingleTurn:
    run = RunInfo("test", 0, 1, 0, policies, Path())
    return SingleTurn(SingleTurnConfig(**keys), ComponentContext(run, "raas", "", 0, Path()))


def play(flow: SingleTurn, engine: EchoEngine, content: Any, id: str = "p0") -> Trajectory | None:
    return asyncio.run(flow.run_episode({"solver": engine}, Prompt(id, {"prompt": content})))  # type: ignore[dict-item]


def test_text_is_encoded_as_it_is_and_answered_once() -> None:
    engine = EchoEngine()
    trajectory = play(workflow(), engine, "x12=")
    assert trajectory is not None
    assert engine.encoded == ["x12="]
    assert [c.text for c in trajectory.completions] == ["=21x"]
    (sequence,) = trajectory.sequences
    assert sequence.loss_mask.tolist() == [False] * 4 + [True] * 4
    assert trajectory.rewards == {}


def test_chat_wraps_text_and_puts_the_system_message_first() -> None:
    engine = EchoEngine()
    play(workflow(chat=True, system="Be brief."), engine, "2+2?")
    user = {"role": "user", "content": "2+2?"}
    assert engine.encoded == [[{"role": "system", "content": "Be brief."}, user]]


def test_messages_are_rendered_and_keep_their_own_system_message() -> None:
    engine = EchoEngine()
    messages = [{"role": "system", "content": "Mine."}, {"role": "user", "content": "Hi"}]
    play(workflow(), engine, messages)
    play(workflow(chat=True, system="Other."), engine, messages)
    assert engine.encoded == [messages, messages]


def test_a_group_encodes_its_prompt_once_but_ids_of_other_sets_are_distinguished() -> None:
    engine, flow = EchoEngine(), workflow()
    for _ in range(5):
        play(flow, engine, "a", id="0")
    play(flow, engine, "b", id="0")
    assert engine.encoded == ["a", "b"]


@pytest.mark.slow
def test_the_cache_is_bounded() -> None:
    engine, flow = EchoEngine(), workflow()
    for index in range(2000):
        play(flow, engine, "a", id=str(index))
    assert len(flow._rendered) <= 512


def test_an_aborted_completion_rejects_the_sample() -> None:
    assert play(workflow(), EchoEngine("abort"), "a") is None


@pytest.mark.parametrize("content", [None, "", [], 7])
def test_prompts_of_another_kind_are_named(content: Any) -> None:
    with pytest.raises(WorkflowError, match=r"prompt 'p0'.*expects data\['prompt'\]"):
        play(workflow(), EchoEngine(), content)


def test_the_policy_must_be_clear() -> None:
    assert play(workflow(("solver", "judge"), policy="solver"), EchoEngine(), "a") is not None
    with pytest.raises(PreflightError, match=r"solver, judge: say which in workflow\.policy"):
        workflow(("solver", "judge"))
    with pytest.raises(PreflightError, match="'solvr' is not in the run, which has solver"):
        workflow(policy="solvr")
    with pytest.raises(ValidationError, match="system needs chat = true"):
        SingleTurnConfig(system="x")


def test_an_episode_costs_little_beside_its_engine() -> None:
    engine, flow, prompt = EchoEngine(), workflow(), Prompt("p", {"prompt": "x12345="})

    async def many(count: int) -> tuple[float, float]:
        began = time.process_time()
        for _ in range(count):
            await flow.run_episode({"solver": engine}, prompt)  # type: ignore[dict-item]
        whole = time.process_time() - began
        tokens = engine.encode("x12345=")
        began = time.process_time()
        for _ in range(count):
            result = await engine.generate(tokens)
            engine.sequence(tokens, result)
            engine.completion(result)
        return whole, time.process_time() - began

    whole, engine_alone = min(asyncio.run(many(2000)) for _ in range(3))
    assert whole < engine_alone + 2000 * 50e-6
