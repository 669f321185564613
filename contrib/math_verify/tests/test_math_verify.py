from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astraflow_contrib_math_verify import fork_server
from astraflow_contrib_math_verify.answers import given_answer, number, quick_verdict, too_costly
from astraflow_contrib_math_verify.checking import Checkers, CheckOutcome
from astraflow_contrib_math_verify.config import MathVerifyConfig
from astraflow_contrib_math_verify.reward import MathVerify
from astraflow_core.errors import UserError, WorkflowError
from astraflow_core.types import Completion, ComponentContext, Prompt, RunInfo, TrajectoryView

CONTEXT = ComponentContext(RunInfo("t", 0, 1, 0, ("p",), Path()), "raas", "", 0, Path())
pytestmark = pytest.mark.timeout(120)

PAIRS = [
    # Numbers: decided without math-verify.
    ("4", r"\boxed{4}"), ("4", r"\boxed{5}"), ("-3", r"\boxed{-3}"), ("-3", r"\boxed{3}"),
    ("0.5", r"\boxed{\frac{1}{2}}"), (r"\frac{1}{2}", r"\boxed{.5}"), ("1000", r"\boxed{1,000}"),
    ("1/3", r"\boxed{0.333333}"), ("1/3", r"\boxed{0.3}"), ("2", r"\boxed{2.0}"),
    ("12", "There are 12."), ("12", "There are 11."), ("12", "I count 3, 4 and 12"), ("7", ""),
    ("42", r"\boxed{42} or \boxed{41}"),
    ("8", "5 + 3"), ("8", "It is 5 + 3 = 8"), ("72", "So she has 72 clips in all."),
    ("7", "The final answer is 7. I hope it is correct."), ("7", "The answer is 7, checked 3 times"),
    ("-5", r"\boxed{\dfrac{-10}{2}}"), ("3", r"$3$"), ("3", r"so $x = 3$"), ("3.14", r"\boxed{22/7}"),
    # Mathematics.
    (r"3\sqrt{2}", r"\boxed{\sqrt{18}}"), (r"3\sqrt{2}", r"\boxed{\sqrt{17}}"),
    ("(x+1)^2", r"\boxed{x^2+2x+1}"), ("(x+1)^2", r"\boxed{x^2+1}"), (r"\frac{\pi}{2}", r"\boxed{\pi/2}"),
    ("50\\%", r"\boxed{0.5}"), ("5", r"\boxed{x=5}"), ("x=5", r"\boxed{5}"), (r"\{1,2,3\}", r"\boxed{\{3,2,1\}}"),
    (r"\{1,2\}", r"\boxed{1} and \boxed{2}"), ("(1,2)", r"\boxed{(2,1)}"), ("[1,2)", r"\boxed{[1,2)}"),
    (r"\sin(\pi/6)", r"\boxed{\frac12}"), (r"\log_2 8", r"\boxed{3}"), ("10^3", r"\boxed{1000}"),
    ("x<3", r"\boxed{3>x}"), (r"2\sqrt{3}+1", r"\boxed{1+2\sqrt{3}}"), ("x^2y", r"\boxed{yx^2}"),
    (r"\frac{1}{x}", r"\boxed{x^{-1}}"), (r"\text{no}", r"\boxed{\text{yes}}"), ("A", r"\boxed{A}"),
    (r"\begin{pmatrix}1&2\end{pmatrix}", r"\boxed{\begin{pmatrix}1&2\end{pmatrix}}"), ("5", r"\boxed{5\text{ cm}}"),
    (r"\infty", r"\boxed{-\infty}"), ("2x", r"\boxed{x+x}"),
]  # fmt: skip
"""Expected answer and completion; what is right is what math-verify says."""
HOSTILE = [
    "9^{9^{9^9}}", "99999999!", "2^{100000000000}", "(" * 100 + "1" + ")" * 100, "7" * 250, "x" * 300,
    r"\sum_{n=1}^{1000000000} n^7", r"\int_0^1 e^{x^{x^x}} dx", r"\sqrt{" * 40 + "2" + "}" * 40,
    "(x+1)^{9999}+(x+2)^{9998}", r"\prod_{k=1}^{99999} k",
]  # fmt: skip
UNFORESEEN = [r"\tan(\tan(x))^{99}+(x+y+z)^{98}", r"\frac{(a+b+c+d)^{60}}{(a+b)^{61}}"]
"""Neither an answer nor recognised: a worker's CPU limit is for these."""


def completion(text: str, policy: str = "p") -> Completion:
    return Completion(policy, text, np.zeros(1, np.int32), "stop")


def view(answer: Any, *texts: str) -> TrajectoryView:
    return TrajectoryView(Prompt("q7", {"answer": answer}), tuple(map(completion, texts)))


@pytest.fixture(scope="module")
def reward() -> MathVerify:
    return MathVerify(MathVerifyConfig(cpu_s=1.0), CONTEXT)


@pytest.fixture
def own() -> Iterator[Checkers]:
    made = Checkers(1, 256)
    yield made
    made.close()


@pytest.mark.slow
def test_it_agrees_with_math_verify(reward: MathVerify) -> None:
    logging.getLogger("math_verify").setLevel(logging.ERROR)

    async def scored() -> list[float | dict[str, float]]:
        return [await reward.score(view(gold, text)) for gold, text in PAIRS]

    assert len(PAIRS) >= 40
    wrong = [
        (gold, text, found)
        for (gold, text), found in zip(PAIRS, asyncio.run(scored()), strict=True)
        if found != float(fork_server.equal(fork_server.parsed(gold), text))
    ]
    assert not wrong


@pytest.mark.slow
def test_hostile_answers_earn_nothing_and_delay_no_other() -> None:
    reward = MathVerify(MathVerifyConfig(cpu_s=0.1), CONTEXT)

    async def scenario() -> tuple[list[Any], float, list[float]]:
        await reward.score(view("x^2", r"\boxed{xx}"))  # the workers are there
        stalls, ended = [0.0], False

        async def beats() -> None:
            while not ended:
                began = time.perf_counter()
                await asyncio.sleep(0.001)
                stalls.append(time.perf_counter() - began)

        beating = asyncio.create_task(beats())
        hostile = [reward.score(view("7", rf"\boxed{{{text}}}")) for text in HOSTILE + UNFORESEEN]
        quick = []
        for _ in range(100):
            began = time.process_time()
            assert await reward.score(view("7", r"\boxed{7}")) == 1.0
            quick.append(time.process_time() - began)
            await asyncio.sleep(0)
        earned = await asyncio.gather(*hostile)
        assert await reward.score(view("x^2", r"\boxed{xx}")) == 1.0
        ended = True
        await beating
        return earned, sorted(stalls)[len(stalls) // 2], quick

    earned, stalled_s, quick = asyncio.run(scenario())
    assert earned == [0.0] * len(HOSTILE + UNFORESEEN)
    assert stalled_s < 0.5 and sorted(quick)[50] < 0.02


@pytest.mark.slow
def test_what_kills_a_worker_fails_nothing_else_and_is_remembered(own: Checkers) -> None:
    slow = r"\boxed{\int_0^1 e^{x^{x^x}} dx}"

    async def check(text: str, cpu_s: float = 0.2) -> CheckOutcome:
        return await own.check("x^2", text, cpu_s, 60)

    async def scenario() -> None:
        assert await check(r"\boxed{xx}", 5) is CheckOutcome.RIGHT
        before = own.replaced
        assert await check(slow) is CheckOutcome.SPENT
        assert own.replaced == before + 1
        assert await check(slow) is CheckOutcome.SPENT
        assert own.replaced == before + 1, "it was asked again"
        assert await check(r"\boxed{x^3}", 5) is CheckOutcome.WRONG
        assert own._server is not None
        os.kill(own._server[0].pid, signal.SIGKILL)
        own._server[0].wait()
        assert await check(r"\boxed{x \cdot x}", 5) is CheckOutcome.RIGHT, "a new server"

    asyncio.run(scenario())
    assert own._server is not None
    pid = own._server[0].pid
    own.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.slow
def test_no_answer_waits_behind_one_that_takes_long(own: Checkers) -> None:
    ended: list[str] = []

    async def check(text: str, cpu_s: float) -> None:
        await own.check("x^2", rf"\boxed{{{text}}}", cpu_s, 100)
        ended.append(text)

    async def scenario() -> None:
        await check("xx", 5)
        long = [asyncio.create_task(check(text, 2)) for text in UNFORESEEN]
        await asyncio.sleep(0)
        await asyncio.gather(*(check(text, 5) for text in ("x x", "x^3", "x^4")))
        await asyncio.gather(*long)

    asyncio.run(scenario())
    assert set(ended[1:4]) == {"x x", "x^3", "x^4"} and set(ended[4:]) == set(UNFORESEEN)


@pytest.mark.slow
def test_it_may_be_called_from_one_event_loop_after_the_other(reward: MathVerify) -> None:
    for _ in range(2):
        assert asyncio.run(reward.score(view("x+x", r"\boxed{2x}"))) == 1.0


@pytest.mark.slow
def test_an_answer_that_no_parser_reads_is_a_mistake_of_the_data(reward: MathVerify) -> None:
    with pytest.raises(
        WorkflowError, match=r"'q7': reward 'math_verify' cannot read the answer '\$\$'"
    ):
        asyncio.run(reward.score(view("$$", r"\boxed{x+1}")))


@pytest.mark.parametrize("answer", [None, "", [], {}, True, [None], " "])
def test_a_prompt_without_answer_is_named(reward: MathVerify, answer: Any) -> None:
    with pytest.raises(WorkflowError, match=r"'q7': reward 'math_verify' needs data\['answer'\]"):
        asyncio.run(reward.score(view(answer, "1")))


def test_of_several_answers_any_will_do_and_each_policy_may_have_its_own(
    reward: MathVerify,
) -> None:
    assert asyncio.run(reward.score(view(["3", 4.0], r"\boxed{4}"))) == 1.0
    assert asyncio.run(reward.score(view(["3", "5"], r"\boxed{4}"))) == 0.0
    assert asyncio.run(reward.score(view("3"))) == 0.0
    each = MathVerify(MathVerifyConfig(each_policy=True), CONTEXT)
    said = (completion("1", "a"), completion("2", "b"), completion("3", "a"))
    found = asyncio.run(each.score(TrajectoryView(Prompt("q", {"answer": 3}), said)))
    assert found == {"a": 1.0, "b": 0.0}


@pytest.mark.parametrize(
    ("text", "answer", "box"),
    [
        (r"a \boxed{1} b \boxed{\frac{1}{2}}.", r"\frac{1}{2}", True),
        (r"\boxed{1} and \boxed{2}", r"\boxed{1} and \boxed{2}", False),
        (r"\boxed{1}, no: \boxed{2}", "2", True),
        (r"\boxed{never closed", r"\boxed{never closed", False),
        ("no box", "no box", False),
        (r"\boxed{" + "9" * 2000 + "}", None, False),
    ],
)
def test_the_answer_is_what_the_last_boxes_hold(text: str, answer: str | None, box: bool) -> None:
    given = given_answer(text)
    assert given.box == box
    assert len(given.text) <= 256 and (answer is None or given.text == answer)


def test_numbers_are_read_exactly() -> None:
    same = ["0.5", ".5", "1/2", r"\frac{1}{2}", r"$\dfrac{2}{4}$", r"\(0.50\)", " 0.5. "]
    assert {number(text) for text in same} == {number("1/2")} != {None}
    assert [number(text) for text in ("1 1/2", "1e5", "5%", "1,23", "x", "", "1/0", "9" * 41)] == [
        None
    ] * 8


def test_what_numbers_decide_costs_microseconds() -> None:
    given = [given_answer(text) for text in (r"\boxed{12}", "So there are 12 of them.", "12,")]
    began = time.process_time()
    for _ in range(300):
        assert [quick_verdict("12", each) for each in given] == [True, True, True]
    assert time.process_time() - began < 0.1
    assert quick_verdict("12", given_answer("13 apples")) is False
    assert quick_verdict("12", given_answer("The answer is 12 and not 13")) is None


def test_costly_answers_reach_no_worker() -> None:
    assert all(too_costly(text, "7") for text in HOSTILE)
    assert not any(too_costly(text, "7") for text in UNFORESEEN)
    assert not any(too_costly(given_answer(text).text, gold) for gold, text in PAIRS)
    assert not too_costly(r"\sum_{n=1}^{100} n", r"\sum_{k=1}^{100} k")
    endless = "1" * 1_000_000 + r"\boxed{"
    began = time.process_time()
    given_answer(endless * 3)
    assert time.process_time() - began < 0.5


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'astraflow-contrib-math-verify\[runtime\]'"):
        MathVerify(MathVerifyConfig(), CONTEXT)
