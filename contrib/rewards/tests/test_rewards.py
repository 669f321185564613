from __future__ import annotations

import asyncio
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow_contrib_rewards.config import ExactConfig, NumericConfig
from astraflow_contrib_rewards.exact import Exact, matching_positions
from astraflow_contrib_rewards.numbers import last_number
from astraflow_contrib_rewards.numeric import Numeric
from astraflow_core.errors import WorkflowError
from astraflow_core.types import Completion, ComponentContext, Prompt, RunInfo, TrajectoryView

CONTEXT = ComponentContext(RunInfo("t", 0, 1, 0, ("p",), Path()), "raas", "", 0, Path())
words = st.text(
    st.characters(exclude_categories=["N", "Cs"], exclude_characters="+-−./,"), max_size=12
)


def completion(text: str, finish_reason: str = "stop") -> Completion:
    return Completion("p", text, np.zeros(1, np.int32), finish_reason)


def score(reward: Any, answer: Any, *texts: str, finish_reason: str = "stop") -> float:
    done = tuple(completion(text, finish_reason) for text in texts)
    return asyncio.run(reward.score(TrajectoryView(Prompt("q7", {"answer": answer}), done)))


@pytest.mark.parametrize("each_policy", [False, True])
def test_a_trajectory_without_completions_scores_0(each_policy: bool) -> None:
    for reward in (
        Exact(ExactConfig(each_policy=each_policy), CONTEXT),
        Numeric(NumericConfig(each_policy=each_policy), CONTEXT),
    ):
        assert score(reward, "42") == 0.0


# --- exact ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "text", "expected"),
    [
        ("42", " 42\n", 1), ("42", "42.", 0), (42, "42", 1), ("a b", "a  b", 0), ("A", "a", 0),
        (["yes", "Yes"], "Yes", 1), (["yes"], "no", 0), ([], "", 0), ("", "", 1),
    ],
)  # fmt: skip
def test_exact_compares_the_stripped_text(answer: Any, text: str, expected: float) -> None:
    assert score(Exact(ExactConfig(), CONTEXT), answer, text) == expected


def test_the_last_completion_counts() -> None:
    assert score(Exact(ExactConfig(), CONTEXT), "b", "a", "b") == 1
    assert score(Exact(ExactConfig(), CONTEXT), "a", "a", "b") == 0
    assert score(Exact(ExactConfig(), CONTEXT), "a") == 0


@pytest.mark.parametrize(
    ("text", "finish_reason", "expected"),
    [
        ("87654", "stop", 1.0),
        ("87654x", "length", 5 / 6),  # right digits, but it did not end
        ("87654", "length", 5 / 6),
        ("8765", "stop", 4 / 6),
        ("", "stop", 0.0),
        ("87054", "stop", 5 / 6),
        (" 87654", "length", 0.0),  # shifted: no position agrees
        ("876541234567", "stop", 5 / 13),
    ],
)
def test_positions_count_the_end(text: str, finish_reason: str, expected: float) -> None:
    reward = Exact(ExactConfig(partial="positions"), CONTEXT)
    assert score(reward, "87654", text, finish_reason=finish_reason) == pytest.approx(expected)


@given(text=st.text("ab", max_size=6), answer=st.text("ab", max_size=6), stopped=st.booleans())
def test_positions_agree_with_a_comparison_of_padded_rows(
    text: str, answer: str, stopped: bool
) -> None:
    given_row, wanted = [*text, *["$"] * stopped], [*answer, "$"]
    length = max(len(given_row), len(wanted))
    left = np.array(given_row + ["<"] * (length - len(given_row)))
    right = np.array(wanted + [">"] * (length - len(wanted)))
    got = matching_positions(completion(text, "stop" if stopped else "length"), answer)
    assert got == pytest.approx(np.mean(left == right))
    assert (got == 1) == (stopped and text == answer)


@pytest.mark.parametrize(
    "reward", [Exact(ExactConfig(), CONTEXT), Numeric(NumericConfig(), CONTEXT)]
)
def test_a_prompt_without_an_answer_is_named(reward: Any) -> None:
    view = TrajectoryView(Prompt("q7", {"prompt": "?"}), (completion("1"),))
    with pytest.raises(
        WorkflowError, match=r"prompt 'q7': reward '\w+' needs data\['answer'\], found prompt"
    ):
        asyncio.run(reward.score(view))


# --- numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the answer is 42.", "42"), ("42", "42"), ("-7", "-7"), ("+7", "7"), ("−7", "-7"),
        ("x=-4", "-4"), ("7-4", "4"), ("(3)-4", "4"), ("5 - 4", "4"), ("5 -4", "-4"), ("a-1", "1"),
        ("1,234,567", "1234567"), ("12,345.50", "12345.5"), ("1, 2, 3", "3"), ("1,2,3", "3"),
        ("1,2345", "2345"), ("1,234,56", "56"), ("1,234, and more", "1234"), ("$1,000", "1000"),
        ("3/4", "3/4"), ("-3/4", "-3/4"), ("3 / 4", "3/4"), ("6/8", "3/4"), ("1,000/4", "250"),
        ("1/0", None), ("2/0.5", "4"), ("11/21/2026", "2026"),
        (".5", "1/2"), ("0.50", "1/2"), ("1.", "1"), ("-.5", "-1/2"), ("3.14.", "3.14"),
        ("2.5e3", "2500"), ("1E-2", "1/100"), ("1e5x", "100000"), ("7eggs", "7"), ("1e9999", "9999"),
        ("٣", None), ("no number", None), ("", None), ("9" * 400, None), ("9" * 9000, None),
        ("2 + 2 = 4 apples", "4"), ("4.\n", "4"), ("[-3]", "-3"), ("3-", "3"),
    ],
)  # fmt: skip
def test_the_last_number(text: str, expected: str | None) -> None:
    assert last_number(text) == (None if expected is None else Fraction(expected))


@given(
    before=words, after=words, value=st.integers(-(10**12), 10**12), style=st.sampled_from("d,+")
)
def test_integers_survive_any_text_around_them(
    before: str, after: str, value: int, style: str
) -> None:
    written = {"d": f"{value}", ",": f"{value:,}", "+": f"{value:+}"}[style]
    assert last_number(f"{before} 12 {written} {after}") == value


@given(value=st.decimals(-(10**6), 10**6, allow_nan=False, places=4))
def test_decimals_are_exact(value: Any) -> None:
    assert last_number(f"it is {value:f}") == Fraction(value)
    assert last_number(f"it is {value:,f}") == Fraction(value)


@given(value=st.fractions(-1000, 1000, max_denominator=500), factor=st.integers(1, 9))
def test_fractions_are_compared_by_value(value: Fraction, factor: int) -> None:
    written = f"= {value.numerator * factor}/{value.denominator * factor}"
    assert last_number(written) == value


@given(st.text(max_size=60))
def test_any_text_gives_a_fraction_or_nothing(text: str) -> None:
    assert isinstance(last_number(text), (Fraction, type(None)))


@given(st.text("0123456789,./eE+- ", max_size=60))
def test_any_jumble_of_digits_gives_a_fraction_or_nothing(text: str) -> None:
    assert isinstance(last_number(text), (Fraction, type(None)))


@pytest.mark.parametrize(
    "text",
    [
        "9," * 20_000,
        "1,234" * 8_000,
        "-" * 40_000,
        "1e" * 20_000,
        "1/" * 20_000,
        "9" * 40_000,
        "1,111" + ",111" * 10_000 + "1",
    ],
)
def test_hostile_text_is_scored_in_time(text: str) -> None:
    began = time.process_time()
    last_number(text)
    assert time.process_time() - began < 1.0


def test_numeric_compares_values() -> None:
    reward = Numeric(NumericConfig(), CONTEXT)
    assert score(reward, "9 apples", "3 times 3 makes 9.") == 1
    assert score(reward, 0.1, "1/10") == 1
    assert score(reward, "1/3", "0.3333333") == 0
    assert score(reward, -5, "so -5") == 1
    assert score(reward, 5, "none") == 0
    assert score(reward, 5) == 0
    with pytest.raises(WorkflowError, match=r"prompt 'q7'.*no number in the answer 'many'"):
        score(reward, "many", "5")


# --- several policies ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reward",
    [
        Exact(ExactConfig(each_policy=True), CONTEXT),
        Numeric(NumericConfig(each_policy=True), CONTEXT),
    ],
)
def test_each_policy_may_be_judged_by_its_own_last_completion(reward: Any) -> None:
    said = [("a", "7"), ("b", "7"), ("a", "8")]
    done = tuple(Completion(policy, text, np.zeros(1, np.int32), "stop") for policy, text in said)
    view = TrajectoryView(Prompt("q", {"answer": "7"}), done)
    assert asyncio.run(reward.score(view)) == {"a": 0.0, "b": 1.0}
