from __future__ import annotations

import asyncio
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from astraflow_contrib_rubrics.config import FormConfig, LengthConfig
from astraflow_contrib_rubrics.form import Form
from astraflow_contrib_rubrics.length import LengthPenalty, penalty
from astraflow_core.types import Completion, ComponentContext, Prompt, RunInfo, TrajectoryView

CONTEXT = ComponentContext(RunInfo("t", 0, 1, 0, ("p",), Path()), "raas", "", 0, Path())
GOOD = "<think>two and two</think>\n<answer>4</answer>"


def completion(
    text: str = "", tokens: int = 1, policy: str = "p", ended: str = "stop"
) -> Completion:
    return Completion(policy, text, np.zeros(tokens, np.int32), ended)


def scored(reward: Any, *completions: Completion) -> Any:
    return asyncio.run(reward.score(TrajectoryView(Prompt("q", {}), completions)))


def form(text: str, ended: str = "stop", **keys: Any) -> Any:
    return scored(Form(FormConfig(**keys), CONTEXT), completion(text, ended=ended))


@pytest.mark.parametrize(
    ("keys", "text", "expected"),
    [
        ({"pattern": r"<a>.*</a>"}, "<a>1\n2</a>", 1), ({"pattern": r"<a>.*</a>"}, "x<a></a>", 0),
        ({"pattern": "é+"}, "éé", 1), ({"pattern": "."}, "\ud800", 1),
        ({"tags": ["think", "answer"]}, GOOD, 1), ({"tags": ["answer", "think"]}, GOOD, 0),
        ({"tags": ["think"]}, "<think></think>", 0), ({"tags": ["think"]}, GOOD + GOOD, 0),
        ({"tags": ["a", "b"]}, "<a>1<b>2</a>3</b>", 0), ({"tags": ["a"]}, "</a>1<a>", 0),
        ({"json_keys": ["x"]}, '{"x": 1, "y": 2}', 1), ({"json_keys": ["x"]}, '{"y": 1}', 0),
        ({"json_keys": []}, "so\n```json\n{}\n```\n", 1), ({"json_keys": []}, "[]", 0),
        ({"json_keys": []}, "[" * 100_000, 0), ({"json_keys": []}, "```json\n{}\n", 0),
        ({"one_box": True}, r"\boxed{\frac{1}{2}}", 1), ({"one_box": True}, r"\boxed{ }", 0),
        ({"one_box": True}, r"\boxed{1} \boxed{1}", 0), ({"one_box": True}, r"\boxed{1", 0),
        ({"tags": ["think"], "one_box": True, "partial": True}, GOOD, 0.5),
        ({"tags": ["think"], "one_box": True}, GOOD, 0),
    ],
)  # fmt: skip
def test_the_form_is_what_the_keys_demand(keys: Any, text: str, expected: float) -> None:
    assert form(text, **keys) == expected


def test_an_end_is_demanded_of_the_policy_and_each_policy_may_be_judged() -> None:
    reward = Form(FormConfig(ended=True, each_policy=True), CONTEXT)
    said = (completion(policy="a"), completion(policy="b", ended="length"))
    assert scored(reward, *said) == {"a": 1.0, "b": 0.0}
    assert scored(reward) == 0.0


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|aa)+$", "(.*)*x", "(a*)*(a*)*(a*)*b"])
def test_no_pattern_is_slow(pattern: str) -> None:
    began = time.process_time()
    assert form("a" * 50_000 + "!", pattern=pattern) == 0
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "demands nothing"), ({"tags": ["a", "a"]}, "a tag twice"), ({"tags": ["<a>"]}, "tags"),
        ({"pattern": "(?=a)"}, "neither look-around nor back-references"), ({"pattern": "("}, "RE2"),
    ],
)  # fmt: skip
def test_a_form_that_cannot_be_demanded_is_refused(keys: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        FormConfig(**keys)


@pytest.mark.parametrize(
    ("length", "expected"),
    [(0, 0), (16384, 0), (18432, -0.5), (20480, -1), (30000, -1), (16385, -1 / 4096)],
)
def test_soft_overlong_is_the_equation_of_dapo(length: int, expected: float) -> None:
    """L_max 20480 and L_cache 4096, as in the paper."""
    config = LengthConfig(max_tokens=20480, cache_tokens=4096)
    assert penalty(config, length) == pytest.approx(expected, abs=1e-12)
    assert LengthConfig(max_tokens=10).cache == 2 and LengthConfig(max_tokens=1).cache == 1


def test_cosine_and_linear_go_from_short_to_long() -> None:
    cosine = LengthConfig(form="cosine", max_tokens=100, short=2.0, long=1.0)
    assert [penalty(cosine, n) for n in (0, 50, 100, 500)] == pytest.approx([2, 1.5, 1, 1])
    assert penalty(cosine, 25) == pytest.approx(1 + 0.5 * (2 - 1) * (1 + math.cos(math.pi / 4)))
    linear = LengthConfig(form="linear", max_tokens=100)
    assert [penalty(linear, n) for n in (0, 25, 100, 500)] == [0, -0.25, -1, -1]


def test_lengths_are_those_of_all_completions_or_of_each_policy() -> None:
    keys = {"form": "linear", "max_tokens": 10}
    said = (
        completion(tokens=2, policy="a"),
        completion(tokens=3, policy="b"),
        completion(tokens=1, policy="a"),
    )
    assert scored(LengthPenalty(LengthConfig(**keys), CONTEXT), *said) == pytest.approx(-0.6)
    each = LengthPenalty(LengthConfig(**keys, each_policy=True), CONTEXT)
    assert scored(each, *said) == pytest.approx({"a": -0.3, "b": -0.3})
    assert scored(each) == 0.0


@pytest.mark.parametrize(
    "keys",
    [
        {"cache_tokens": 20}, {"form": "cosine", "cache_tokens": 2}, {"short": 1.0}, {"long": 1.0},
        {"form": "linear", "long": math.inf}, {"max_tokens": 0},
    ],
)  # fmt: skip
def test_lengths_that_contradict_each_other_are_refused(keys: Any) -> None:
    with pytest.raises(ValidationError):
        LengthConfig(**{"max_tokens": 10, **keys})
