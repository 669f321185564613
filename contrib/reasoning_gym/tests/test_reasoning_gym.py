from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astraflow_contrib_reasoning_gym.config import PromptsConfig, RewardConfig
from astraflow_contrib_reasoning_gym.prompts import ReasoningGym
from astraflow_contrib_reasoning_gym.reward import ReasoningGymReward
from astraflow_core.errors import PromptError, WorkflowError
from astraflow_core.types import Completion, ComponentContext, Prompt, RunInfo, TrajectoryView

CONTEXT = ComponentContext(RunInfo("t", 0, 1, 0, ("p",), Path()), "raas", "", 0, Path())
PRODUCTS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}


def source(**keys: Any) -> ReasoningGym:
    keys = {"datasets": {"products": PRODUCTS, "gcd": {"min_value": 1, "max_value": 90}}} | keys
    return ReasoningGym(PromptsConfig(**keys), CONTEXT)


def score(prompt: Prompt, text: str, **keys: Any) -> float:
    done = (Completion("p", text, np.zeros(1, np.int32), "stop"),)
    return ReasoningGymReward(RewardConfig(**keys), CONTEXT).score(TrajectoryView(prompt, done))


@pytest.mark.slow
def test_answers_are_right_by_arithmetic_and_datasets_take_turns() -> None:
    prompts = source(size=40, suffix=" Number only.")
    for index in range(40):
        prompt = prompts[index]
        assert prompt.data["prompt"].endswith(" Number only.")
        numbers = [int(n) for n in re.findall(r"\d+", prompt.data["prompt"])]
        if index % 2:
            assert prompt.id == f"products:0:{index // 2}"
            assert int(prompt.data["answer"]) == math.prod(numbers)
        else:
            assert prompt.id == f"gcd:0:{index // 2}"
            assert int(prompt.data["answer"]) == math.gcd(*numbers[:2])


def test_prompts_travel_as_json_and_score_the_same() -> None:
    prompt = source(size=2)[1]
    travelled = Prompt(prompt.id, json.loads(json.dumps(prompt.data)))
    assert travelled == prompt
    assert score(travelled, f" {prompt.data['answer']} ") == 1.0


def test_wrong_and_merely_containing_answers() -> None:
    prompt = source(size=2)[1]
    answer = prompt.data["answer"]
    assert score(prompt, str(int(answer) + 1)) == 0.0
    assert score(prompt, "") == 0.0
    sentence = f"The answer is {answer}."
    assert score(prompt, sentence) == 0.0
    assert 0.0 < score(prompt, sentence, binary=False) < 0.99
    assert score(prompt, sentence, extract="last_number") == 1.0
    assert score(prompt, f"{answer} or 10007?", extract="last_number") == 0.0
    assert score(prompt, "no idea", extract="last_number") == 0.0


def test_the_same_config_gives_the_same_prompts_in_any_order() -> None:
    first, second = source(size=30, seed=5), source(size=30, seed=5)
    forward = [first[i] for i in range(30)]
    assert forward == [second[i] for i in reversed(range(30))][::-1]
    assert forward != [source(size=30, seed=6)[i] for i in range(30)]


def test_held_out_questions_are_never_in_training() -> None:
    train, held = source(size=400, split="train"), source(size=60, split="held_out", seed=9)
    trained = {train[i].data["prompt"] for i in range(400)}
    kept = {held[i].data["prompt"] for i in range(60)}
    assert not trained & kept
    assert len({held[i].id for i in range(60)}) == 60


@pytest.mark.parametrize(
    ("datasets", "reason"),
    [
        ({"product": {}}, "no dataset 'product'; did you mean products"),
        ({"products": {"max_term": 2}}, "'products' refuses its settings"),
        ({"products": {"min_terms": 5, "max_terms": 2}}, "'products' refuses its settings"),
        ({"simple_equations": {"operators": ["+"]}}, "'simple_equations' cannot make item 0"),
    ],
)
def test_mistakes_are_found_when_the_source_is_made(datasets: dict[str, Any], reason: str) -> None:
    with pytest.raises(PromptError, match=reason):
        source(datasets=datasets)


def test_a_split_that_is_too_small_and_prompts_of_another_source_are_named() -> None:
    same = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    two_numbers = {"gcd": {"min_numbers": 2, "max_numbers": 2, "min_value": 7, "max_value": 8}}
    with pytest.raises(
        PromptError, match="split 'held_out' has 0 among 120 items of gcd, fewer than"
    ):
        source(datasets=two_numbers, size=3, split="held_out")
    assert len(source(datasets={"products": same}, size=5, split="held_out")) == 5
    with pytest.raises(WorkflowError, match=r"prompt 'x'.*needs prompts of the prompt source"):
        score(Prompt("x", {"prompt": "?"}), "1")
    with pytest.raises(IndexError):
        source(size=2)[2]
