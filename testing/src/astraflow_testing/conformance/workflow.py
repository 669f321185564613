"""Conformance of a workflow: correct tokens, independent episodes, and cancellation."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from astraflow_core.errors import UserError, WireError
from astraflow_core.types import Completion, Prompt, Trajectory, TrajectoryView
from astraflow_runtime.raas.episodes.episodes import TaskFailed, TaskRunner
from astraflow_runtime.raas.episodes.workflows import NamedWorkflow
from astraflow_runtime.raas.rewards.scoring import LoopScorer
from astraflow_runtime.raas.user_objects import checked_workflow
from astraflow_testing import scripted_policies
from astraflow_testing.conformance._checks import Claims, Demands, assert_whole, capability
from astraflow_testing.conformance._processes.blocking import always_blocked
from astraflow_testing.conformance._workflows.episode_checks import (
    cancelled,
    content,
    kept_by,
    left_of,
    names,
    tells_of_the_engine,
    told,
    untrue,
)
from astraflow_testing.conformance.subject import POLICIES, Conformance, Subject, context
from astraflow_testing.scripted_policies import (
    Answer,
    Says,
    ScriptedPolicies,
    ScriptedRequest,
    answer,
)
from astraflow_wire.columns import check_limits
from astraflow_wire.groups import ReceivedGroup
from astraflow_wire.limits import sendable
from astraflow_wire.messages import SamplingMessage, Task
from astraflow_wire.model_files.model_limits import ModelLimits

DEMANDS = Demands("protocols/workflow")
GROUP = 3
LONGEST_S = 1.0
"""Longest time for which an episode may block the event loop."""
MOST_REQUESTS = 4
"""Requests of an episode that are made to fail or to hang, one at a time."""
ODD_ANSWERS: dict[str, Answer] = {
    "nothing": "",
    "bytes that are not UTF-8": b"\xff\xc3(\x80 12",
    "more than fits": "12 and " * 40,
    "a truncated tool call": '<tool_call>{"name": "search", "arguments": {"q": "',
    "brackets and tags": "{}{{0}} %s %d \\boxed{ </think></answer> ```",
    "control characters": "\x00\x1b[2J\r\n\u2028",
}

Build = Callable[[], Iterator[tuple[str, Any]]]
MakePolicies = Callable[..., ScriptedPolicies]


class WorkflowConformance(Conformance, Claims):
    """Requirements of every workflow, tested with policies without models that record all requests.

    Required fixture ``component``: the workflow under test, in the configurations worth testing::

        class TestMine(WorkflowConformance):
            @pytest.fixture
            def component(self) -> Subject:
                return installed("workflow", "mine", {}, {"turns": 3})

    A workflow for other policies overrides ``policies`` and ``frozen``, one that reads other data ``prompts``, one
    that continues only after certain answers ``says``.
    """

    @pytest.fixture
    def component(self) -> Subject:
        """Required: the workflow, its configurations and its capabilities."""
        pytest.fail(
            "define the fixture `component`: return installed('workflow', NAME, keys, more_keys …) or a Subject of "
            "your own"
        )

    @pytest.fixture
    def policies(self) -> tuple[str, ...]:
        """Policies of the run."""
        return POLICIES

    @pytest.fixture
    def frozen(self) -> tuple[str, ...]:
        """Names of frozen engines that the workflow asks, those of ``[engines.NAME]``."""
        return ()

    @pytest.fixture
    def prompts(self) -> list[Prompt]:
        """A few prompts with the data that the workflow needs."""
        return [
            Prompt(f"prompt-{n}", {"prompt": f"What is {n} + {n}?", "answer": str(2 * n)})
            for n in (3, 40, 512, 77)
        ]

    @pytest.fixture
    def says(self) -> Says:
        """``says(policy, text of the prompt)``: what a policy answers."""
        return answer

    @pytest.fixture
    def scripted(
        self, policies: tuple[str, ...], frozen: tuple[str, ...], says: Says
    ) -> MakePolicies:
        """``scripted()``: policies without requests so far."""

        def made(**changes: Any) -> ScriptedPolicies:
            return ScriptedPolicies(policies, frozen, **{"says": says, **changes})

        return made

    @pytest.fixture
    def build(
        self,
        component: Subject,
        policies: tuple[str, ...],
        frozen: tuple[str, ...],
        tmp_path: Path,
    ) -> Build:
        """``build()``: (label, fresh instance) of each configuration."""

        def made() -> Iterator[tuple[str, Any]]:
            for name, factory in component.variants.items():
                built = factory(context("raas", tmp_path, policies=policies, frozen=frozen))
                try:
                    yield name, checked_workflow(name, built)
                except UserError as error:
                    DEMANDS.broken(str(error), "an async method run_episode(engines, prompt)")

        return made

    def test_the_suite_is_whole(self, request: pytest.FixtureRequest) -> None:
        """Known capabilities, and prompts to play."""
        assert_whole("workflow", request, ("policies", "frozen", "prompts", "says"))

    # --- trajectories --------------------------------------------------------------------------

    def test_its_groups_pass_the_intake(
        self, build: Build, scripted: MakePolicies, prompts: list[Prompt]
    ) -> None:
        """The checks of a RaaS and of the dataflow accept a group, and some of its tokens are trained."""
        for name, workflow in build():
            groups = [_group(name, workflow, scripted(), prompt) for prompt in prompts]
            DEMANDS.that(
                any(group.header.trajectories for group in groups),
                f"{name} rejected every episode",
                "trajectories for valid prompts and answers; if it needs other ones, override the "
                "fixtures `prompts` and `says`",
            )
            DEMANDS.that(
                any(group.loss_mask.any() for group in groups),
                f"{name} marks no token of any trajectory to be trained",
                "a loss mask that is true at the sampled tokens to train",
            )

    def test_trained_tokens_are_those_that_were_sampled(
        self, build: Build, scripted: MakePolicies, prompts: list[Prompt]
    ) -> None:
        """Tokens, log-probs and versions as the engine gave them, after the tokens that it was shown."""
        for name, workflow in build():
            for number, prompt in enumerate(prompts):
                on = scripted()
                for sequence in _sequences(asyncio.run(_play(workflow, on, number, prompt))):
                    if problem := untrue(sequence, on.asked):
                        DEMANDS.broken(
                            f"{name}: a sequence of policy {sequence.policy!r} has {problem}",
                            "the sampled token ids, after the prompt ids that were sent to the engine: build it with "
                            "engine.sequence(prompt, result), and never by encoding text again",
                        )

    @pytest.mark.parametrize("said", ODD_ANSWERS)
    def test_any_text_of_a_model_is_handled(
        self, said: str, build: Build, scripted: MakePolicies, prompts: list[Prompt]
    ) -> None:
        """A policy under training says anything: a trajectory, or ``None``, and never an error."""
        for name, workflow in build():
            on = scripted(says=lambda policy, text: ODD_ANSWERS[said])
            _group(f"{name}, if models say {said}", workflow, on, prompts[0])

    def test_a_reward_has_something_to_score(
        self, build: Build, scripted: MakePolicies, prompts: list[Prompt]
    ) -> None:
        """Rewards of its own, or completions for the reward component; texts as the tokenizer decodes them."""
        for name, workflow in build():
            for number, prompt in enumerate(prompts):
                outcome = asyncio.run(_play(workflow, scripted(), number, prompt))
                if not isinstance(outcome, Trajectory):
                    continue
                rewarded = outcome.rewards or all(s.reward is not None for s in outcome.sequences)
                DEMANDS.that(
                    bool(rewarded or outcome.completions),
                    f"{name} returned neither rewards nor completions",
                    "completions=(engine.completion(result), …), which the reward component scores, or rewards",
                )
                for each in outcome.completions:
                    given: object = each
                    DEMANDS.that(
                        isinstance(given, Completion),
                        f"{name}: a completion is {given!r:.120}",
                        "engine.completion(result)",
                    )

    def test_metrics_arrive(
        self, build: Build, scripted: MakePolicies, prompts: list[Prompt]
    ) -> None:
        """Finite numbers under names that fit a message; others would be dropped without a warning."""
        for name, workflow in build():
            for number, prompt in enumerate(prompts):
                outcome = asyncio.run(_play(workflow, scripted(), number, prompt))
                if isinstance(outcome, Trajectory):
                    lost = outcome.metrics.keys() - sendable(outcome.metrics).keys()
                    DEMANDS.that(
                        not lost,
                        f"{name}: metrics { ({key: outcome.metrics[key] for key in sorted(lost)}) } would be left out",
                        "finite numbers under short names; omit missing values",
                    )

    # --- many at once --------------------------------------------------------------------------

    def test_concurrent_episodes_are_independent(
        self, build: Build, scripted: MakePolicies, prompts: list[Prompt]
    ) -> None:
        """Any number of episodes run in one instance: each has its own tokens and the same result as alone."""
        demanded = "no state shared between episodes: keep the data of an episode in local variables of run_episode"
        builds = zip(build(), build(), build(), strict=True)
        for (name, workflow), (_, one), (_, other) in builds:
            played = [prompts[number % len(prompts)] for number in range(3 * len(prompts))]
            alone, again = (_alone(each, scripted, played) for each in (one, other))
            on = scripted()
            outcomes = asyncio.run(_together(workflow, on, played))
            for number, outcome in enumerate(outcomes):
                asked = [each for each in on.asked if each.episode == number]
                if problem := next(
                    filter(None, (untrue(s, asked) for s in _sequences(outcome))), ""
                ):
                    DEMANDS.broken(
                        f"{name}: among {len(played)} episodes one has {problem}", demanded
                    )
                if alone[number] == again[number]:  # else it makes choices of its own
                    DEMANDS.that(
                        content(outcome) == alone[number],
                        f"{name}: the episode of prompt {played[number].id!r} gave another result beside others than "
                        "alone",
                        demanded,
                    )

    def test_the_event_loop_is_not_blocked(
        self, build: Build, scripted: MakePolicies, prompts: list[Prompt]
    ) -> None:
        """All episodes of a RaaS, its requests and its heartbeat share one loop."""
        for name, workflow in build():
            blocked_s = always_blocked(
                lambda: _together(workflow, scripted(), prompts),  # noqa: B023
                LONGEST_S,
            )
            DEMANDS.that(
                not blocked_s,
                f"{name} blocked the event loop for {blocked_s:.1f} s",
                f"less than {LONGEST_S:g} s: await slow operations, and move computations to a thread "
                "(asyncio.to_thread)",
            )

    # --- ends ----------------------------------------------------------------------------------

    def test_an_error_of_an_engine_ends_the_episode(
        self, build: Build, scripted: MakePolicies, prompts: list[Prompt]
    ) -> None:
        """For every request: the task is retried, and nothing is trained with missing data."""
        for name, workflow in build():
            for request in range(_requests(workflow, scripted, prompts[0])):
                outcome = asyncio.run(_play(workflow, scripted(fails=request), 0, prompts[0]))
                DEMANDS.that(
                    isinstance(outcome, BaseException) and tells_of_the_engine(outcome),
                    f"{name}: its request {request + 1} failed, and the episode {told(outcome)}",
                    "that errors of engines are not caught, or are raised again, so that the task is retried",
                )

    def test_an_episode_that_is_cancelled_ends_at_once(
        self, build: Build, scripted: MakePolicies, prompts: list[Prompt]
    ) -> None:
        """At a deadline the RaaS cancels an episode in any state; its requests and tasks end with it."""
        for name, workflow in build():
            for request in range(_requests(workflow, scripted, prompts[0])):
                on = scripted(holds=request)
                problem = asyncio.run(cancelled(workflow, on, prompts[0], scripted()))
                DEMANDS.that(
                    not problem,
                    f"{name}: cancelled in its request {request + 1}, {problem}",
                    "that CancelledError propagates: catch Exception and not BaseException, clean up in `finally`, and "
                    "make tasks in an asyncio.TaskGroup",
                )

    def test_no_task_outlives_its_episode(
        self, build: Build, scripted: MakePolicies, prompts: list[Prompt]
    ) -> None:
        """No task continues, and no request. What the first episode begins may stay, as a server of the workflow."""

        async def left_by(workflow: Any, on: ScriptedPolicies) -> list[str]:
            kept = await kept_by(workflow, scripted(), prompts[0])
            await on.play(0, lambda: workflow.run_episode(on.engines(), prompts[0]))
            return left_of(on, kept)

        for name, workflow in build():
            left = asyncio.run(left_by(workflow, scripted()))
            DEMANDS.that(
                not left,
                f"{name} returned and left {', '.join(left)}",
                "that an episode awaits or cancels the tasks that it starts: create them in an asyncio.TaskGroup",
            )

    # --- manners -------------------------------------------------------------------------------

    def test_its_inputs_are_not_changed(
        self, build: Build, scripted: MakePolicies, prompts: list[Prompt]
    ) -> None:
        """Prompts are those of the whole group, results belong to the engine."""
        for name, workflow in build():
            for number, prompt in enumerate(prompts):
                on, before = scripted(), deepcopy(prompt)
                asyncio.run(_play(workflow, on, number, prompt))
                DEMANDS.that(
                    prompt == before, f"{name} changed the data of a prompt", "a copy of its own"
                )
                DEMANDS.that(
                    all(each.columns() == each.kept for each in on.asked),
                    f"{name} wrote into the arrays of a result",
                    "copies of the data that it changes",
                )

    def test_a_prompt_that_it_cannot_play_is_named(
        self, build: Build, scripted: MakePolicies
    ) -> None:
        """Missing data is an error of the data set, and the message says so."""
        for name, workflow in build():
            outcome = asyncio.run(_play(workflow, scripted(), 0, Prompt("odd-one", {})))
            if isinstance(outcome, BaseException):
                DEMANDS.that(
                    names(outcome, "odd-one"),
                    f"{name} {told(outcome)} for a prompt without data",
                    "a WorkflowError that names the prompt and the missing data",
                )

    # --- flags ---------------------------------------------------------------------------------

    @capability("multi_turn")
    def test_an_episode_has_several_turns(
        self, component: Subject, build: Build, scripted: MakePolicies, prompts: list[Prompt]
    ) -> None:
        """A policy is asked again after its answer, with a longer prompt."""
        DEMANDS.that(
            any(
                one.policy == later.policy and len(later.prompt) > len(one.prompt)
                for _, workflow in build()
                for prompt in prompts
                for one, later in itertools.combinations(
                    _requests_of(workflow, scripted(), prompt), 2
                )
            ),
            "declares 'multi_turn', but no policy was asked again with a longer prompt",
            "a second turn with these prompts and answers (fixtures `prompts` and `says`), or no such capability",
        )

    @capability("multi_policy")
    def test_an_episode_asks_several_policies(
        self, component: Subject, build: Build, scripted: MakePolicies, prompts: list[Prompt]
    ) -> None:
        """More than one is asked within an episode."""
        DEMANDS.that(
            any(
                len({each.policy for each in _requests_of(workflow, scripted(), prompt)}) > 1
                for _, workflow in build()
                for prompt in prompts
            ),
            "declares 'multi_policy', but each episode asked one policy only",
            "requests to several with these prompts and answers, or no such capability",
        )


async def _fixed(view: TrajectoryView) -> float:
    """The reward component of a run, if the workflow uses it."""
    return float(len(view.text))


def _group(name: str, workflow: Any, on: ScriptedPolicies, prompt: Prompt) -> ReceivedGroup:
    """The group of a task, made by the code of a RaaS and checked by that of the dataflow."""
    task = Task(
        id="task-1", prompt_id=prompt.id, data=prompt.data, group_size=GROUP,
        sampling=SamplingMessage(max_tokens=scripted_policies.SAMPLING.max_tokens),
        lease_s=60.0, deadline_s=30.0,
    )  # fmt: skip
    scorer = LoopScorer("of the suite", _fixed)
    runner = TaskRunner("raas-0", NamedWorkflow(name, workflow), scorer, on.handles)
    limits = ModelLimits(
        vocabulary=scripted_policies.VOCABULARY, positions=scripted_policies.CONTEXT
    )
    try:
        group = ReceivedGroup(asyncio.run(runner.run(task)))
        check_limits(group, dict.fromkeys(on.handles, limits))
    except (TaskFailed, WireError) as error:
        DEMANDS.broken(
            f"{name}: {error}", "a Trajectory that a RaaS and the dataflow accept, or None"
        )
    return group


async def _play(workflow: Any, on: ScriptedPolicies, number: int, prompt: Prompt) -> Any:
    return await on.play(number, lambda: workflow.run_episode(on.engines(), prompt))


async def _together(workflow: Any, on: ScriptedPolicies, prompts: list[Prompt]) -> list[Any]:
    plays: list[Awaitable[Any]] = [_play(workflow, on, n, p) for n, p in enumerate(prompts)]
    return list(await asyncio.gather(*plays))


def _alone(workflow: Any, scripted: MakePolicies, prompts: list[Prompt]) -> list[Any]:
    return [
        content(asyncio.run(_play(workflow, scripted(), number, prompt)))
        for number, prompt in enumerate(prompts)
    ]


def _requests_of(workflow: Any, on: ScriptedPolicies, prompt: Prompt) -> list[ScriptedRequest]:
    asyncio.run(_play(workflow, on, 0, prompt))
    return on.asked


def _requests(workflow: Any, scripted: MakePolicies, prompt: Prompt) -> int:
    return min(len(_requests_of(workflow, scripted(), prompt)), MOST_REQUESTS)


def _sequences(outcome: Any) -> list[Any]:
    return list(outcome.sequences) if isinstance(outcome, Trajectory) else []
