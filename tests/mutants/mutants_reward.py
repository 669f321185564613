"""Rewards with one mistake each; run by test_mutants.py."""

from __future__ import annotations

import asyncio
import os
import random
import re
import time
from typing import Any, ClassVar

import pytest

from astraflow_core.errors import WorkflowError
from astraflow_core.types import TrajectoryView
from astraflow_testing.conformance.reward import RewardConformance
from astraflow_testing.conformance.subject import Subject


class LastWord:
    """1 if the last word of the last completion is the answer; a share of it if both begin alike."""

    def __init__(self, context: Any) -> None:
        self.context = context

    def answer(self, view: TrajectoryView) -> str:
        if "answer" not in view.data:
            raise WorkflowError(
                f"prompt {view.prompt.id!r} has no data['answer'], which is compared"
            )
        return str(view.data["answer"])

    def judge(self, view: TrajectoryView) -> Any:
        words = view.text.split()
        return float(bool(words) and words[-1] == self.answer(view))

    async def score(self, view: TrajectoryView) -> Any:
        self.answer(view)
        return self.judge(view)


class OfLastWord(RewardConformance):
    """The reward with ``mistake`` in the place of its class."""

    mistake: ClassVar[type[Any]] = LastWord
    capabilities: ClassVar[frozenset[str]] = frozenset()

    @pytest.fixture
    def component(self) -> Subject:
        return Subject({"last_word": lambda context: self.mistake(context)}, self.capabilities)


class TestHealthy(OfLastWord):
    pass


class Plain(LastWord):
    def score(self, view: TrajectoryView) -> Any:
        return {policy: self.judge(view) for policy in ("solver", "verifier")}


class TestHealthyBlocking(OfLastWord):
    mistake = Plain
    capabilities = frozenset({"blocking"})


class Judged(LastWord):
    async def score(self, view: TrajectoryView, engines: Any) -> Any:
        judge = engines["judge"]
        read = judge.render(f"Is {self.answer(view)} what it says in: {view.text[-200:]}?")
        said = judge.completion(await judge.generate(read)).text
        return float(said.startswith("yes"))


class TestHealthyJudge(OfLastWord):
    mistake = Judged

    @pytest.fixture
    def frozen(self) -> tuple[str, ...]:
        return ("judge",)

    @pytest.fixture
    def says(self) -> Any:
        return lambda policy, text: "yes" if text.count("6") > 1 else "no"


class ReadsANumber(LastWord):
    def judge(self, view: TrajectoryView) -> Any:
        return float(float(view.text) == float(self.answer(view)))


class TestReadsANumber(OfLastWord):
    wrong = "raises for a text that is not a number"
    caught_by = "test_every_completion_earns_a_finite_number"
    mistake = ReadsANumber


class Distance(LastWord):
    def judge(self, view: TrajectoryView) -> Any:
        try:
            return -abs(float(view.text) - float(self.answer(view)))
        except ValueError:
            return -1.0


class TestDistance(OfLastWord):
    wrong = "is not finite when a policy writes thousands of nines"
    caught_by = "test_every_completion_earns_a_finite_number"
    mistake = Distance


class Backtracks(LastWord):
    def judge(self, view: TrajectoryView) -> Any:
        if re.fullmatch(r"(a+)+", view.text[-40:]):
            return 0.5
        return super().judge(view)


class TestBacktracks(OfLastWord):
    wrong = "uses a pattern that needs exponential time"
    deadline_s = 1.0
    caught_by = "test_every_completion_earns_a_finite_number"
    mistake = Backtracks


class Evaluates(LastWord):
    def judge(self, view: TrajectoryView) -> Any:
        if view.text.startswith("__import__"):
            os._exit(9)  # what eval would do
        return super().judge(view)


class TestEvaluates(OfLastWord):
    wrong = "runs what a policy writes, which ends its process"
    caught_by = "test_every_completion_earns_a_finite_number"
    mistake = Evaluates


class OnePolicy(LastWord):
    def judge(self, view: TrajectoryView) -> Any:
        return {"solver": super().judge(view)}


class TestOnePolicy(OfLastWord):
    wrong = "gives a dict that lacks a policy"
    caught_by = "test_every_completion_earns_a_finite_number"
    mistake = OnePolicy


class ByChance(LastWord):
    def judge(self, view: TrajectoryView) -> Any:
        return super().judge(view) + random.gauss(0, 0.01)


class TestByChance(OfLastWord):
    wrong = "adds noise"
    caught_by = "test_the_same_completion_earns_the_same"
    mistake = ByChance


class Curriculum(LastWord):
    def __init__(self, context: Any) -> None:
        self.solved = 0

    def judge(self, view: TrajectoryView) -> Any:
        self.solved += super().judge(view) > 0
        return super().judge(view) / (1 + self.solved)


class TestCurriculum(OfLastWord):
    wrong = "gives less the more it has seen solved"
    caught_by = "test_the_same_completion_earns_the_same"
    mistake = Curriculum


class Constant(LastWord):
    def judge(self, view: TrajectoryView) -> Any:
        return 0.0


class TestConstant(OfLastWord):
    wrong = "gives 0 for everything, as one that reads another key of the data"
    caught_by = "test_it_distinguishes_completions"
    mistake = Constant


class KeepsTheView(LastWord):
    async def score(self, view: TrajectoryView) -> Any:
        self.view = view
        await asyncio.sleep(0)
        return self.judge(self.view)


class TestKeepsTheView(OfLastWord):
    wrong = "keeps what it scores in the instance across an await"
    caught_by = "test_concurrent_scores_are_independent"
    mistake = KeepsTheView


class AsksTheWeb(LastWord):
    async def score(self, view: TrajectoryView) -> Any:
        time.sleep(1.3)
        return self.judge(view)


class TestAsksTheWeb(OfLastWord):
    wrong = "blocks the event loop, as a request by a blocking library does"
    caught_by = "test_the_event_loop_is_not_blocked"
    mistake = AsksTheWeb


class TestUndeclaredBlocking(OfLastWord):
    wrong = "is a plain function without the flag"
    caught_by = "test_blocking_is_declared_by_those_who_may_block"
    mistake = Plain


class TestDeclaredInVain(OfLastWord):
    wrong = "declares that it blocks, and is async"
    caught_by = "test_blocking_is_declared_by_those_who_may_block"
    capabilities = frozenset({"blocking"})


class PopsTheAnswer(LastWord):
    def judge(self, view: TrajectoryView) -> Any:
        given = super().judge(view)
        view.data.setdefault("seen", []).append(given)
        return given


class TestPopsTheAnswer(OfLastWord):
    wrong = "writes into the data of the prompt"
    caught_by = "test_its_inputs_are_not_changed"
    mistake = PopsTheAnswer


class Unnamed(LastWord):
    def answer(self, view: TrajectoryView) -> str:
        return str(view.data["answer"])


class TestUnnamed(OfLastWord):
    wrong = "raises a KeyError for a prompt without an answer"
    caught_by = "test_a_prompt_that_it_cannot_score_is_named"
    mistake = Unnamed
