"""Workflows with one mistake each; run by test_mutants.py."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

from astraflow_core.errors import WorkflowError
from astraflow_core.types import Prompt, Trajectory
from astraflow_engine_host.protocol import EngineError
from astraflow_testing.conformance.subject import Subject
from astraflow_testing.conformance.workflow import WorkflowConformance


class TwoTurns:
    """The solver answers, the verifier comments, and the solver answers again, in one sequence."""

    def __init__(self, context: Any) -> None:
        self.context = context

    def question(self, prompt: Prompt) -> str:
        if not isinstance(prompt.data.get("prompt"), str):
            raise WorkflowError(f"prompt {prompt.id!r} has no text: expected data['prompt']")
        return str(prompt.data["prompt"])

    async def run_episode(self, engines: Any, prompt: Prompt) -> Any:
        solver, verifier = engines["solver"].session(), engines["verifier"]
        shown = solver.render([{"role": "user", "content": self.question(prompt)}])
        first = await solver.generate(shown)
        read = verifier.render(solver.completion(first).text + "?")
        comment = await verifier.generate(read)
        said = solver.render(verifier.completion(comment).text)
        second = await solver.generate(np.concatenate([shown, first.tokens, said]))
        sequence = self.join(solver, shown, first, said, second)
        return self.ended(
            Trajectory(
                (sequence, verifier.sequence(read, comment)),
                (solver.completion(second), verifier.completion(comment)),
                metrics={"turns": 2.0},
            ),
            prompt,
        )

    def join(self, solver: Any, shown: Any, first: Any, said: Any, second: Any) -> Any:
        begun = solver.sequence(shown, first)
        whole = solver.sequence(np.concatenate([begun.tokens, said]), second)
        columns = {}
        for name in ("loss_mask", "logprobs", "versions"):
            columns[name] = getattr(whole, name).copy()
            columns[name][: len(begun.tokens)] = getattr(begun, name)
        return replace(whole, **columns)

    def ended(self, trajectory: Trajectory, prompt: Prompt) -> Any:
        return trajectory


class OfTwoTurns(WorkflowConformance):
    """The workflow with ``mistake`` in the place of its class."""

    mistake: ClassVar[type[Any]] = TwoTurns
    capabilities: ClassVar[frozenset[str]] = frozenset({"multi_turn", "multi_policy"})

    @pytest.fixture
    def component(self) -> Subject:
        return Subject({"two_turns": lambda context: self.mistake(context)}, self.capabilities)


class TestHealthy(OfTwoTurns):
    pass


class Misaligned(TwoTurns):
    def ended(self, trajectory: Trajectory, prompt: Prompt) -> Any:
        first, *rest = trajectory.sequences
        return replace(trajectory, sequences=(replace(first, logprobs=first.logprobs[1:]), *rest))


class TestMisaligned(OfTwoTurns):
    wrong = "its columns have different lengths"
    caught_by = "test_its_groups_pass_the_intake"
    mistake = Misaligned


class TrainsTheComment(TwoTurns):
    def join(self, solver: Any, shown: Any, first: Any, said: Any, second: Any) -> Any:
        sequence = super().join(solver, shown, first, said, second)
        mask = np.arange(len(sequence.tokens)) >= len(shown)
        return replace(sequence, loss_mask=mask)


class TestTrainsTheComment(OfTwoTurns):
    wrong = "trains tokens that the policy did not sample"
    caught_by = "test_its_groups_pass_the_intake"
    mistake = TrainsTheComment


class TrainsNothing(TwoTurns):
    def ended(self, trajectory: Trajectory, prompt: Prompt) -> Any:
        masked = (replace(s, loss_mask=s.loss_mask & False) for s in trajectory.sequences)
        return replace(trajectory, sequences=tuple(masked))


class TestTrainsNothing(OfTwoTurns):
    wrong = "its loss mask is false everywhere"
    caught_by = "test_its_groups_pass_the_intake"
    mistake = TrainsNothing


class RejectsAll(TwoTurns):
    def ended(self, trajectory: Trajectory, prompt: Prompt) -> Any:
        return None


class TestRejectsAll(OfTwoTurns):
    wrong = "rejects every sample"
    caught_by = "test_its_groups_pass_the_intake"
    mistake = RejectsAll


class EncodesAgain(TwoTurns):
    async def run_episode(self, engines: Any, prompt: Prompt) -> Any:
        solver = engines["solver"]
        shown = solver.render(self.question(prompt))
        result = await solver.generate(shown)
        tokens = solver.tokenizer.encode(solver.completion(result).text)
        count = len(tokens)
        again = replace(
            result,
            tokens=tokens,
            logprobs=result.logprobs[:count],
            versions=result.versions[:count],
        )
        return Trajectory((solver.sequence(shown, again),), (solver.completion(result),))


class TestEncodesAgain(OfTwoTurns):
    wrong = "encodes the text of a completion, which gives other tokens than were sampled"
    caught_by = "test_trained_tokens_are_those_that_were_sampled"
    mistake = EncodesAgain


class VersionOfTheEnd(TwoTurns):
    def join(self, solver: Any, shown: Any, first: Any, said: Any, second: Any) -> Any:
        sequence = super().join(solver, shown, first, said, second)
        sampled = sequence.versions >= 0
        return replace(sequence, versions=np.where(sampled, solver.version, -1).astype(np.int32))


class TestVersionOfTheEnd(OfTwoTurns):
    wrong = "says that the version served at the end sampled all tokens"
    caught_by = "test_trained_tokens_are_those_that_were_sampled"
    mistake = VersionOfTheEnd


class ForgetsATurn(TwoTurns):
    def join(self, solver: Any, shown: Any, first: Any, said: Any, second: Any) -> Any:
        return solver.sequence(shown, second)


class TestForgetsATurn(OfTwoTurns):
    wrong = "leaves out what the policy was shown before it sampled"
    caught_by = "test_trained_tokens_are_those_that_were_sampled"
    mistake = ForgetsATurn


class ReadsNumbers(TwoTurns):
    def ended(self, trajectory: Trajectory, prompt: Prompt) -> Any:
        number = float(trajectory.completions[0].text.split()[0])
        return replace(trajectory, metrics={"number": number})


class TestReadsNumbers(OfTwoTurns):
    wrong = "fails when a model does not reply as it expects"
    caught_by = "test_any_text_of_a_model_is_handled"
    mistake = ReadsNumbers


class NothingToScore(TwoTurns):
    def ended(self, trajectory: Trajectory, prompt: Prompt) -> Any:
        return replace(trajectory, completions=())


class TestNothingToScore(OfTwoTurns):
    wrong = "gives neither rewards nor completions"
    caught_by = "test_a_reward_has_something_to_score"
    mistake = NothingToScore


class MeanOfNone(TwoTurns):
    def ended(self, trajectory: Trajectory, prompt: Prompt) -> Any:
        return replace(trajectory, metrics={"tool_seconds": float("nan")})


class TestMeanOfNone(OfTwoTurns):
    wrong = "has a metric that is not a number"
    caught_by = "test_metrics_arrive"
    mistake = MeanOfNone


class SharesTheAnswer(TwoTurns):
    def question(self, prompt: Prompt) -> str:
        text = super().question(prompt)
        self.answer = prompt.data["answer"]
        return text

    def ended(self, trajectory: Trajectory, prompt: Prompt) -> Any:
        return replace(
            trajectory, rewards=dict.fromkeys(("solver", "verifier"), float(self.answer))
        )


class TestSharesTheAnswer(OfTwoTurns):
    wrong = "keeps the answer in the instance, where another episode finds it"
    caught_by = "test_concurrent_episodes_are_independent"
    mistake = SharesTheAnswer


class SharesTheTokens(TwoTurns):
    async def run_episode(self, engines: Any, prompt: Prompt) -> Any:
        self.trajectory = await super().run_episode(engines, prompt)
        await asyncio.sleep(0)
        return self.trajectory


class TestSharesTheTokens(OfTwoTurns):
    wrong = "keeps its trajectory in the instance across an await"
    caught_by = "test_concurrent_episodes_are_independent"
    mistake = SharesTheTokens


class Sleeps(TwoTurns):
    def ended(self, trajectory: Trajectory, prompt: Prompt) -> Any:
        time.sleep(1.2)
        return trajectory


class TestSleeps(OfTwoTurns):
    wrong = "blocks the event loop, as a request by a blocking library does"
    caught_by = "test_the_event_loop_is_not_blocked"
    mistake = Sleeps


class RejectsFailures(TwoTurns):
    async def run_episode(self, engines: Any, prompt: Prompt) -> Any:
        try:
            return await super().run_episode(engines, prompt)
        except EngineError:
            return None


class TestRejectsFailures(OfTwoTurns):
    wrong = "rejects the sample when an engine fails"
    caught_by = "test_an_error_of_an_engine_ends_the_episode"
    mistake = RejectsFailures


class NeverGivesUp(TwoTurns):
    async def run_episode(self, engines: Any, prompt: Prompt) -> Any:
        try:
            return await super().run_episode(engines, prompt)
        except asyncio.CancelledError:
            return await super().run_episode(engines, prompt)


class TestNeverGivesUp(OfTwoTurns):
    wrong = "continues when it is cancelled"
    caught_by = "test_an_episode_that_is_cancelled_ends_at_once"
    mistake = NeverGivesUp


class LeavesARequest(TwoTurns):
    async def run_episode(self, engines: Any, prompt: Prompt) -> Any:
        play = asyncio.create_task(super().run_episode(engines, prompt))
        return await asyncio.shield(play)


class TestLeavesARequest(OfTwoTurns):
    wrong = "leaves its requests to the engine when it is cancelled"
    caught_by = "test_an_episode_that_is_cancelled_ends_at_once"
    mistake = LeavesARequest


class LogsLater(TwoTurns):
    def ended(self, trajectory: Trajectory, prompt: Prompt) -> Any:
        self.later = asyncio.create_task(asyncio.sleep(30))
        return trajectory


class TestLogsLater(OfTwoTurns):
    wrong = "starts a task that nobody awaits"
    caught_by = "test_no_task_outlives_its_episode"
    mistake = LogsLater


class TakesThePrompt(TwoTurns):
    def ended(self, trajectory: Trajectory, prompt: Prompt) -> Any:
        prompt.data["prompt"] += "!"
        return trajectory


class TestTakesThePrompt(OfTwoTurns):
    wrong = "changes the data of a prompt, which the whole group shares"
    caught_by = "test_its_inputs_are_not_changed"
    mistake = TakesThePrompt


class WritesIntoResults(TwoTurns):
    def join(self, solver: Any, shown: Any, first: Any, said: Any, second: Any) -> Any:
        second.logprobs[-1] = 0.0
        return super().join(solver, shown, first, said, second)


class TestWritesIntoResults(OfTwoTurns):
    wrong = "writes into the log-probs of a result"
    caught_by = "test_its_inputs_are_not_changed"
    mistake = WritesIntoResults


class Unnamed(TwoTurns):
    def question(self, prompt: Prompt) -> str:
        return str(prompt.data["prompt"])


class TestUnnamed(OfTwoTurns):
    wrong = "raises a KeyError for a prompt without what it needs"
    caught_by = "test_a_prompt_that_it_cannot_play_is_named"
    mistake = Unnamed


class Once(TwoTurns):
    async def run_episode(self, engines: Any, prompt: Prompt) -> Any:
        solver = engines["solver"]
        shown = solver.render(self.question(prompt))
        result = await solver.generate(shown)
        return Trajectory((solver.sequence(shown, result),), (solver.completion(result),))


class TestOneTurn(OfTwoTurns):
    wrong = "declares several turns and has one"
    caught_by = "test_an_episode_has_several_turns"
    mistake = Once


class TestOnePolicy(OfTwoTurns):
    wrong = "declares several policies and asks one"
    caught_by = "test_an_episode_asks_several_policies"
    mistake = Once


class TestUnshownTools(OfTwoTurns):
    wrong = "declares tools, and no test shows them"
    caught_by = "test_every_declared_capability_is_tested"
    capabilities = frozenset({"multi_turn", "multi_policy", "tools"})


class NotAsync(TwoTurns):
    def run_episode(self, engines: Any, prompt: Prompt) -> Any:
        return None


class TestNotAsync(OfTwoTurns):
    wrong = "its run_episode is not a coroutine function"
    caught_by = "test_its_groups_pass_the_intake"
    mistake = NotAsync
