from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from astraflow_contrib_prompts.config import DigitsConfig
from astraflow_contrib_prompts.digits import Digits, apply, held_out
from astraflow_core.errors import PromptError
from astraflow_core.types import ComponentContext, RunInfo


def digits(**keys: Any) -> Digits:
    context = ComponentContext(RunInfo("t", 0, 1, 0, ("p",), Path()), "dataflow", "", 0, Path())
    return Digits(DigitsConfig(**keys), context)


def strings(source: Digits) -> list[str]:
    return [source[index].data["prompt"][1:-1] for index in range(len(source))]


def test_held_out_prompts_are_never_in_training() -> None:
    train, held = strings(digits(seed=1)), strings(digits(split="held_out", seed=2))
    assert not set(train) & set(held)
    assert len({*train, *held}) == len(train) + len(held) == 100_000
    assert len(held) == pytest.approx(10_000, rel=0.05)


@pytest.mark.parametrize("operation", ["complement", "copy", "reverse", "sort"])
@pytest.mark.parametrize("count", [5, 9])
def test_splits_are_disjoint_for_every_seed_and_operation(operation: str, count: int) -> None:
    held = {
        text
        for seed in range(3)
        for text in strings(digits(split="held_out", size=300, seed=seed, digits=count))
    }
    train = strings(digits(operation=operation, size=2000, seed=7, digits=count))
    assert not held & set(train)


@pytest.mark.parametrize("count", [3, 8])
def test_prompts_are_distinct_and_the_same_for_the_same_seed(count: int) -> None:
    first, again, other = (strings(digits(digits=count, size=400, seed=s)) for s in (5, 5, 6))
    assert first == again != other
    assert len(set(first)) == 400
    assert all(len(text) == count and text.isdecimal() for text in first)


def test_a_smaller_size_is_a_prefix() -> None:
    assert strings(digits(size=50)) == strings(digits(size=200))[:50]


@given(st.text("0123456789", min_size=1, max_size=18))
def test_operations_by_arithmetic(text: str) -> None:
    assert int(apply("complement", text)) + int(text) == 10 ** len(text) - 1
    assert len(apply("complement", text)) == len(text)
    assert apply("reverse", apply("reverse", text)) == text == apply("copy", text)
    ordered = apply("sort", text)
    assert all(a <= b for a, b in itertools.pairwise(ordered))
    assert {c: ordered.count(c) for c in text} == {c: text.count(c) for c in text}


def test_prompts_are_those_of_the_quickstart() -> None:
    prompt = digits()[0]
    text = prompt.data["prompt"][1:-1]
    assert prompt.data == {"prompt": f"x{text}=", "answer": apply("complement", text)}
    assert prompt.id == f"complement:{text}"
    assert digits(operation="sort")[0].data["prompt"].startswith("s")
    assert not held_out(text)


def test_what_cannot_be_delivered_is_an_error() -> None:
    with pytest.raises(
        PromptError, match=r"split 'train' of digits = 2 has \d+ prompts, fewer than size = 100"
    ):
        digits(digits=2, size=100)
    with pytest.raises(PromptError, match="needs size with digits = 7"):
        digits(digits=7)
    with pytest.raises(PromptError, match="above 1000000"):
        digits(digits=7, size=2_000_000)
    with pytest.raises(ValidationError):
        digits(operation="double")
    with pytest.raises(IndexError):
        digits(size=3)[3]
    with pytest.raises(IndexError):
        digits(size=3)[-1]
