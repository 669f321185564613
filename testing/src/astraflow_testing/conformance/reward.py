"""Conformance of a reward: a number for any text, the same each time, and in time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from astraflow_core.errors import WorkflowError
from astraflow_core.types import Prompt, TrajectoryView
from astraflow_engine_host.failures import describe
from astraflow_runtime.raas.rewards.scoring import as_number, validated
from astraflow_runtime.raas.user_objects import asks_engines, is_async, score_function
from astraflow_testing.conformance._checks import Demands, assert_whole
from astraflow_testing.conformance._processes.apart import ProcessEnded, apart
from astraflow_testing.conformance._processes.blocking import always_blocked
from astraflow_testing.conformance._workflows.reward_cases import view, views
from astraflow_testing.conformance.subject import POLICIES, Conformance, Subject, context
from astraflow_testing.scripted_policies import Says, ScriptedPolicies, answer

DEMANDS = Demands("protocols/reward")
LONGEST_S = 1.0
"""Longest time for one score on the event loop, which all episodes of a RaaS and its heartbeat share."""

Build = Callable[[], Iterator[tuple[str, Any]]]
Score = Callable[[Any, TrajectoryView], Coroutine[Any, Any, Any]]
Scored = Mapping[str, TrajectoryView]


class RewardConformance(Conformance):
    """Requirements of every reward.

    Required fixture ``component``: the reward under test, in the configurations worth testing::

        class TestMine(RewardConformance):
            @pytest.fixture
            def component(self) -> Subject:
                return installed("reward", "mine", {}, {"strict": True})

    A reward that reads other data than ``answer`` also overrides ``prompts`` and ``right``, one that asks a frozen
    engine ``frozen`` and ``says``. ``deadline_s`` is the longest that one score may take.
    """

    deadline_s: ClassVar[float] = 20.0

    @pytest.fixture
    def component(self) -> Subject:
        """Required: the reward, its configurations and its capabilities."""
        pytest.fail(
            "define the fixture `component`: return installed('reward', NAME, keys, more_keys …) or a Subject of "
            "your own"
        )

    @pytest.fixture
    def prompts(self) -> list[Prompt]:
        """A few prompts with the data that the reward needs."""
        return [
            Prompt(f"prompt-{n}", {"prompt": f"What is {n} + {n}?", "answer": str(2 * n)})
            for n in (3, 40)
        ]

    @pytest.fixture
    def right(self) -> Callable[[Prompt], str]:
        """``right(prompt)``: the text of a completion with the highest reward."""
        return lambda prompt: str(prompt.data["answer"])

    @pytest.fixture
    def frozen(self) -> tuple[str, ...]:
        """Names of frozen engines that the reward asks, those of ``[engines.NAME]``."""
        return ()

    @pytest.fixture
    def says(self) -> Says:
        """``says(engine, text of the prompt)``: what an engine answers that the reward asks."""
        return answer

    @pytest.fixture
    def build(self, component: Subject, frozen: tuple[str, ...], tmp_path: Path) -> Build:
        """``build()``: (label, fresh instance) of each configuration."""

        def made() -> Iterator[tuple[str, Any]]:
            for name, factory in component.variants.items():
                yield name, factory(context("raas", tmp_path, frozen=frozen))

        return made

    @pytest.fixture
    def score(self, frozen: tuple[str, ...], says: Says) -> Score:
        """``await score(reward, view)``: what the reward returns, called as a RaaS does."""

        async def scored(reward: Any, seen: TrajectoryView) -> Any:
            function = score_function(reward)
            if asks_engines(reward):
                value = function(seen, engines=ScriptedPolicies(POLICIES, frozen, says).engines())
            else:
                value = function(seen)
            return as_number(await value if is_async(reward) else value)

        return scored

    @pytest.fixture
    def scored(self, prompts: list[Prompt], right: Callable[[Prompt], str]) -> Scored:
        """Label → trajectory: what policies write."""
        return {
            f"{prompt.id}, {label}": seen
            for prompt in prompts
            for label, seen in views(prompt, right(prompt), POLICIES).items()
        }

    def test_the_suite_is_whole(self, request: pytest.FixtureRequest) -> None:
        """Known capabilities, and prompts to score."""
        assert_whole("reward", request, ("prompts", "right", "frozen", "says"))

    # --- numbers -------------------------------------------------------------------------------

    def test_every_completion_earns_a_finite_number(
        self, build: Build, scored: Scored, score: Score
    ) -> None:
        """For right, wrong, empty, endless and malicious completions: no exception, no hang, no crash, no NaN."""
        for number, (name, _) in enumerate(build()):

            def work(number: int = number) -> Iterator[str]:
                name, reward = next(itertools.islice(build(), number, None))
                yield from (_score_error(name, score, reward, seen) for seen in scored.values())

            labels, told = iter(scored), []
            try:
                for said in apart(work, self.deadline_s):
                    label = next(labels)
                    told += [f"{label}: {said}"] if said else []
            except ProcessEnded as ended:
                DEMANDS.broken(
                    f"{name}: of {next(labels, 'the last completion')} it {ended}",
                    f"a number within {self.deadline_s:g} s for any text of a policy: limit the length of parsed text, "
                    "never evaluate it, and use regular expressions that need linear time",
                )
            DEMANDS.that(
                not told,
                f"{name} gave no number for {len(told)} of {len(scored)} completions:\n  "
                + "\n  ".join(told[:8]),
                "a finite number, or one for each policy, for any text of a policy; text that cannot be parsed "
                "gets the reward of a wrong answer",
            )

    def test_the_same_completion_earns_the_same(
        self, build: Build, scored: Scored, score: Score
    ) -> None:
        """In another order, by another instance, and repeatedly."""
        for (name, one), (_, other) in zip(build(), build(), strict=True):
            order = list(scored)
            first = {label: asyncio.run(score(one, scored[label])) for label in order}
            for who, reward in {"another instance": other, "the same instance": one}.items():
                for label in reversed(order):
                    again = asyncio.run(score(reward, scored[label]))
                    DEMANDS.that(
                        first[label] == again,
                        f"{name}: {label} earned {first[label]}, and {again} of {who} in another order",
                        "that only the prompt and the completions decide",
                    )

    def test_it_distinguishes_completions(self, build: Build, scored: Scored, score: Score) -> None:
        """A reward that is the same for all completions gives no learning signal."""
        for name, reward in build():
            earned = [asyncio.run(score(reward, seen)) for seen in scored.values()]
            DEMANDS.that(
                any(earned[0] != other for other in earned[1:]),
                f"{name} gave {earned[0]} for all of {len(earned)} completions, including the right ones",
                "a difference between completions; if it reads other data, override the fixtures `prompts` and "
                "`right`",
            )

    # --- manners -------------------------------------------------------------------------------

    def test_concurrent_scores_are_independent(
        self, build: Build, scored: Scored, score: Score
    ) -> None:
        """One instance scores many trajectories concurrently."""
        for (name, one), (_, other) in zip(build(), build(), strict=True):
            if not is_async(one):
                pytest.skip("a worker process scores one trajectory at a time")

            async def at_once(reward: Any = other) -> list[Any]:
                return await asyncio.gather(*(score(reward, seen) for seen in scored.values()))

            alone = [asyncio.run(score(one, seen)) for seen in scored.values()]
            for label, expected, found in zip(scored, alone, asyncio.run(at_once()), strict=True):
                DEMANDS.that(
                    expected == found,
                    f"{name}: {label} earned {expected} alone, and {found} beside others",
                    "no state shared between calls: keep the data of a call in local variables",
                )

    def test_the_event_loop_is_not_blocked(
        self, build: Build, scored: Scored, score: Score
    ) -> None:
        """An async score runs on the loop of its RaaS, which must stay able to answer."""
        for name, reward in build():
            if not is_async(reward):
                pytest.skip("a worker process may be blocked")
            for label, seen in scored.items():
                blocked_s = always_blocked(lambda: score(reward, seen), LONGEST_S)  # noqa: B023
                DEMANDS.that(
                    not blocked_s,
                    f"{name}: {label} blocked the event loop for {blocked_s:.1f} s",
                    f"less than {LONGEST_S:g} s: await slow operations, or make `score` a plain function and declare "
                    "'blocking', so that it runs in worker processes",
                )

    def test_blocking_is_declared_by_those_who_may_block(
        self, build: Build, component: Subject
    ) -> None:
        """The capability decides where the reward runs: a plain function runs in worker processes."""
        for name, reward in build():
            declared, plain = "blocking" in component.capabilities, not is_async(reward)
            DEMANDS.that(
                declared == plain,
                f"{name}: its score is {'a plain function' if plain else 'async'}, and the capability 'blocking' is "
                f"{'declared' if declared else 'not declared'}",
                "an async score, which runs on the event loop, or a plain one and the capability 'blocking'",
            )

    def test_its_inputs_are_not_changed(self, build: Build, scored: Scored, score: Score) -> None:
        """The prompt's data is that of the whole group, and the tokens are trained."""
        for name, reward in build():
            for label, seen in scored.items():
                before = deepcopy(seen)
                asyncio.run(score(reward, seen))
                DEMANDS.that(
                    before.prompt == seen.prompt
                    and all(
                        np.array_equal(a.tokens, b.tokens)
                        for a, b in zip(before.completions, seen.completions, strict=True)
                    ),
                    f"{name} changed the prompt or the tokens of {label}",
                    "that data is not changed",
                )

    def test_a_prompt_that_it_cannot_score_is_named(
        self, build: Build, prompts: list[Prompt], right: Callable[[Prompt], str], score: Score
    ) -> None:
        """Missing data is an error of the data set, and the message says so."""
        odd = view(Prompt("odd-one", {}), right(prompts[0]), right(prompts[0]), policies=POLICIES)
        for name, reward in build():
            demanded = "a number, or a WorkflowError that names the prompt and the missing data"
            try:
                asyncio.run(score(reward, odd))
            except WorkflowError as error:
                DEMANDS.that(
                    "odd-one" in str(error), f"{name}: the error says only: {error}", demanded
                )
            except Exception as error:  # noqa: BLE001 - told to the author
                DEMANDS.broken(
                    f"{name} raised {type(error).__name__}: {error} for a prompt without data",
                    demanded,
                )


def _score_error(name: str, score: Score, reward: Any, seen: TrajectoryView) -> str:
    """A problem of the score of a trajectory; empty if there is none."""
    try:
        validated(name, asyncio.run(score(reward, seen)), POLICIES, seen.prompt.id)
    except WorkflowError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - told to the author
        return f"raised {describe(error)}"
    return ""
