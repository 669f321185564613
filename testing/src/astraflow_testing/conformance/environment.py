"""Conformance of an environment: consistent observations, an end, and an answer to any action."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from astraflow_core.errors import EnvironmentFailed, UserError
from astraflow_core.types import Action, Observation, Prompt
from astraflow_environments.keys import EnvironmentKeys
from astraflow_environments.pool import EnvironmentPool
from astraflow_testing.conformance._checks import Claims, Demands, assert_whole, capability
from astraflow_testing.conformance._environments.driving import Acts as Acts
from astraflow_testing.conformance._environments.driving import (
    DrivenEnvironment,
    is_async,
    is_blocking,
    odd_actions,
    plain,
    play,
    played,
    run_async,
)
from astraflow_testing.conformance._environments.driving import guess as guess
from astraflow_testing.conformance._environments.resources import resources
from astraflow_testing.conformance._processes.blocking import always_blocked
from astraflow_testing.conformance.subject import Conformance, Subject, context

DEMANDS = Demands("protocols/environment")
MOST_STEPS = 200
"""Number of actions, of any kind, after which an episode has to be over."""
LONGEST_S = 1.0
"""Longest time for which an async environment may block the event loop."""
ODD = tuple(odd_actions("", ()))
SEED = 2**62 + 11
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

Build = Callable[[], Iterator[DrivenEnvironment]]


class EnvironmentConformance(Conformance, Claims):
    """Requirements of every environment.

    Required fixtures: ``component``, the environment under test in the configurations worth testing, and ``tasks``,
    prompts that it can play::

        class TestMine(EnvironmentConformance):
            @pytest.fixture
            def component(self) -> Subject:
                return installed("environment", "mine", {}, {"actions": "tools"})

            @pytest.fixture
            def tasks(self) -> list[Prompt]:
                return [Prompt("one", {"level": 1}), Prompt("two", {"level": 2})]

    An environment in which random words and calls of tools never get anywhere overrides ``acts``.
    """

    @pytest.fixture
    def component(self) -> Subject:
        """Required: the environment, its configurations and its capabilities."""
        pytest.fail(
            "define the fixture `component`: return installed('environment', NAME, keys, more_keys …)"
        )

    @pytest.fixture
    def tasks(self) -> list[Prompt]:
        """Required: a few prompts that it can play."""
        pytest.fail("define the fixture `tasks`: return [Prompt(id, data), …]")

    @pytest.fixture
    def acts(self) -> Acts:
        """``acts(observation, generator)``: what a model does; by default a word, or a call of a tool that its schema
        allows."""
        return guess

    @pytest.fixture
    def build(self, component: Subject, tmp_path: Path) -> Iterator[Build]:
        """``build()``: a new instance of each configuration, closed after the test."""
        open_ones: list[DrivenEnvironment] = []

        def made() -> Iterator[DrivenEnvironment]:
            for name, factory in component.variants.items():
                built = factory(context("raas", tmp_path / str(len(open_ones))))
                open_ones.append(DrivenEnvironment(name, built, component.capabilities))
                yield open_ones[-1]

        yield made
        for driven in open_ones:
            driven.end()

    def test_the_suite_is_whole(self, request: pytest.FixtureRequest, tasks: list[Prompt]) -> None:
        """Known capabilities, and tasks to play."""
        assert_whole("environment", request, ("tasks", "acts"))
        assert tasks, "the fixture `tasks` is empty"

    # --- episodes ------------------------------------------------------------------------------

    def test_an_episode_begins_goes_on_and_ends(
        self, build: Build, tasks: list[Prompt], acts: Acts
    ) -> None:
        """Valid observations, and an outcome after a limited number of steps, for any actions."""
        for driven in build():
            for task in tasks:
                seen = _episode(driven, task, acts)
                DEMANDS.that(
                    seen[-1].outcome is not None,
                    f"{driven.name}: the episode of {task.id!r} is not over after {MOST_STEPS} actions",
                    "an outcome: limit the steps, and truncate an episode at the limit",
                )

    def test_observations_survive_the_way_to_another_process(
        self, build: Build, tasks: list[Prompt], acts: Acts
    ) -> None:
        """Messages and tools are JSON-like."""
        for driven in build():
            for observation in _episode(driven, tasks[0], acts):
                told = [observation.messages, observation.tools]
                try:
                    arrived = json.loads(json.dumps(told, allow_nan=False))
                except (TypeError, ValueError) as error:
                    DEMANDS.broken(
                        f"{driven.name}: an observation is not JSON-like: {error}", "that"
                    )
                sent = [[dict(entry) for entry in entries] for entries in told]
                DEMANDS.that(
                    arrived == sent,
                    f"{driven.name}: an observation differs after a round trip through JSON: {sent!r:.200}",
                    "texts, finite numbers, booleans, None, lists, and dicts whose keys are texts",
                )

    @pytest.mark.parametrize("done", ODD)
    def test_every_action_of_a_model_is_answered(
        self, done: str, build: Build, tasks: list[Prompt]
    ) -> None:
        """An observation, and a message for each tool call: a mistake of the model is not a failure."""
        for driven in build():
            first = _reset(driven, tasks[0])
            action = odd_actions(first.role, first.tools)[done]
            answered = _step(f"{driven.name}, if a model gives {done},", driven, action)
            if answered.outcome is None and action.calls and first.tools:
                _answers(driven.name, action, answered)

    def test_a_task_that_it_cannot_play_is_named(self, build: Build) -> None:
        """Missing data is an error of the data set that no retry can fix."""
        for driven in build():
            demanded = "an episode, or a UserError (PromptError) that names the prompt and the missing data"
            try:
                driven.reset(Prompt("odd-one", {}), SEED)
            except UserError as error:
                DEMANDS.that(
                    "odd-one" in str(error),
                    f"{driven.name}: the error says only: {error}",
                    demanded,
                )
            except Exception as error:  # noqa: BLE001 - told to the author
                DEMANDS.broken(
                    f"{driven.name} raised {type(error).__name__}: {error} for a prompt without data",
                    demanded,
                )

    def test_its_inputs_are_not_changed(
        self, build: Build, tasks: list[Prompt], acts: Acts
    ) -> None:
        """The prompt's data is that of the whole group."""
        for driven in build():
            for task in tasks:
                before = deepcopy(task)
                _episode(driven, task, acts)
                DEMANDS.that(
                    task == before, f"{driven.name} changed the data of {task.id!r}", "a copy"
                )

    # --- what decides --------------------------------------------------------------------------

    def test_an_instance_plays_one_episode_after_the_other(
        self, build: Build, component: Subject, tasks: list[Prompt], acts: Acts
    ) -> None:
        """Also after an abandoned episode, of which nothing remains."""
        for driven, fresh in zip(build(), build(), strict=True):
            _episode(driven, tasks[-1], acts)
            _step(driven.name, driven, acts(_reset(driven, tasks[-1]), random.Random(1)))
            again, first = _episode(driven, tasks[0], acts), _episode(fresh, tasks[0], acts)
            if "deterministic" in component.capabilities:
                _same(f"{driven.name}, after other episodes,", first, again)

    @capability("deterministic")
    def test_task_seed_and_actions_decide(
        self, component: Subject, build: Build, tasks: list[Prompt], acts: Acts
    ) -> None:
        """Another instance gives the same observations, independent of the process's random generators."""
        before = random.getstate(), np.random.get_state()
        try:
            for one, other in zip(build(), build(), strict=True):
                for task in tasks:
                    random.seed(1)
                    np.random.seed(1)
                    expected = _episode(one, task, acts)
                    random.seed(2)
                    np.random.seed(2)
                    _same(
                        f"{one.name}, by another instance,", expected, _episode(other, task, acts)
                    )
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])

    @capability("deterministic")
    def test_concurrent_instances_are_independent(
        self, component: Subject, build: Build, tasks: list[Prompt], acts: Acts
    ) -> None:
        """Many episodes run concurrently, each in its own instance."""
        for alone, one, other in zip(build(), build(), build(), strict=True):
            expected = _episode(alone, tasks[0], acts)
            mine = play(one, tasks[0], SEED, acts, MOST_STEPS)
            theirs = play(other, tasks[-1], SEED + 1, acts, MOST_STEPS, draws=3)
            found = []
            for observation in mine:
                found.append(observation)
                next(theirs, None)
            _same(f"{one.name}, beside another instance,", expected, found)

    def test_equal_states_have_equal_continuations(
        self, build: Build, component: Subject, tasks: list[Prompt], acts: Acts
    ) -> None:
        """Equal actions in equal states of a task have the same result."""
        for driven in build():
            after: dict[Any, Any] = {}
            for draws in range(8):
                driven.log.clear()
                seen = list(play(driven, tasks[0], SEED, acts, MOST_STEPS, draws))
                actions = [told for told, _ in driven.log[1:]]
                for one, action, following in zip(seen, actions, seen[1:], strict=False):
                    if one.state is None:
                        continue
                    led_to = (following.reward, following.outcome, following.state)
                    known = after.setdefault((one.role, one.state, repr(action)), led_to)
                    DEMANDS.that(
                        known == led_to or "deterministic" not in component.capabilities,
                        f"{driven.name}: in state {one.state!r:.80} {action.text or action.calls!r:.80} led to {known}, and "
                        f"to {led_to} another time (reward, outcome, state)",
                        "a state that distinguishes different continuations, including the remaining steps; or None",
                    )

    # --- capabilities --------------------------------------------------------------------------

    @capability("tools")
    def test_tools_are_offered_and_their_calls_answered(
        self, component: Subject, build: Build, tasks: list[Prompt], acts: Acts
    ) -> None:
        """In OpenAI's form, by one configuration at least; each call has its answer."""
        called = 0
        for driven in build():
            first = _reset(driven, tasks[0])
            for tool in first.tools:
                function = tool["function"]
                parameters = function.get("parameters", {})
                DEMANDS.that(
                    tool.get("type") == "function"
                    and _NAME.fullmatch(str(function.get("name"))) is not None
                    and isinstance(function.get("description", ""), str)
                    and (not parameters or parameters.get("type") == "object"),
                    f"{driven.name}: a tool is {tool!r:.200}",
                    'type "function", and a function with name (letters, digits, _ and -), description and parameters of '
                    'type "object"',
                )
            if first.tools:
                action = guess(first, random.Random(1))
                answered = _step(driven.name, driven, action)
                if answered.outcome is None:
                    _answers(driven.name, action, answered)
                called += 1
        DEMANDS.that(
            called > 0,
            "declares 'tools', and no configuration offers one",
            "tools in the first observation; give `component` the keys that enable them",
        )

    @capability("multi_role")
    def test_roles_are_known_and_act(
        self, component: Subject, build: Build, tasks: list[Prompt], acts: Acts
    ) -> None:
        """They are declared before an episode, and more than one acts in it."""
        for driven in build():
            roles = driven.roles
            DEMANDS.that(
                len(set(roles)) == len(roles) >= 2 and all(roles),
                f"{driven.name} has the roles {roles!r:.80}",
                "two or more different names",
            )
            seen = [one for task in tasks for one in _episode(driven, task, acts)]
            acting = {observation.role for observation in seen if observation.outcome is None}
            DEMANDS.that(
                len(acting) >= 2,
                f"{driven.name}: of the roles {', '.join(roles)} only {', '.join(acting)} ever acts",
                "that roles take turns",
            )

    def test_blocking_is_declared_by_those_who_may_block(
        self, build: Build, component: Subject
    ) -> None:
        """The capability decides where it runs: plain functions run in worker processes."""
        for driven in build():
            declared = "blocking" in component.capabilities
            kept = is_blocking(driven.environment) if declared else is_async(driven.environment)
            DEMANDS.that(
                kept,
                f"{driven.name}: 'blocking' is {'' if declared else 'not '}declared, and of reset, step and close "
                f"{'some are' if declared else 'not all are'} async",
                "all three async, to run on the event loop, or all plain functions and the capability 'blocking'",
            )

    @capability("blocking")
    def test_it_is_played_in_a_worker_process(
        self, component: Subject, build: Build, tasks: list[Prompt], acts: Acts, tmp_path: Path
    ) -> None:
        """Played by the pool that runs use; a deterministic environment gives the same observations there."""
        recipe = component.recipe
        if recipe is None:
            pytest.fail("make an environment that declares 'blocking' with installed()")
        for driven, keys in zip(build(), recipe.variants, strict=True):
            table = EnvironmentKeys(environment={"use": recipe.use, **keys})
            pool = EnvironmentPool(table, context("raas", tmp_path / "worker"))

            async def elsewhere(pool: EnvironmentPool = pool) -> list[Any]:
                generator, found = random.Random(0), []
                try:
                    async with pool.episode() as environment:
                        found = [await environment.reset(tasks[0], SEED)]
                        while found[-1].outcome is None and len(found) <= MOST_STEPS:
                            found.append(await environment.step(acts(found[-1], generator)))
                finally:
                    await pool.close()
                return found

            try:
                found = run_async(elsewhere)
            except EnvironmentFailed as error:
                DEMANDS.broken(f"{driven.name} in a worker process: {error}", "the same there")
            if "deterministic" in component.capabilities:
                expected = _episode(driven, tasks[0], acts)
                _same(f"{driven.name}, in a worker process,", expected, found)

    def test_the_event_loop_is_not_blocked(
        self, build: Build, component: Subject, tasks: list[Prompt], acts: Acts
    ) -> None:
        """An async environment runs on the loop of its RaaS, which must stay able to answer."""
        if "blocking" in component.capabilities:
            pytest.skip("a worker process may be blocked")
        for driven in build():
            blocked_s = always_blocked(
                lambda: played(driven.environment, tasks[0], acts, MOST_STEPS),  # noqa: B023
                LONGEST_S,
            )
            DEMANDS.that(
                not blocked_s,
                f"{driven.name} blocked the event loop for {blocked_s:.1f} s",
                f"less than {LONGEST_S:g} s: await slow operations, or make its methods plain functions and declare "
                "'blocking', so that it runs in worker processes",
            )

    def test_nothing_is_left_when_it_is_closed(
        self, component: Subject, tasks: list[Prompt], acts: Acts, tmp_path: Path
    ) -> None:
        """In the middle of an episode: no thread, process, task or open file."""
        for number, (name, factory) in enumerate(component.variants.items()):
            left: list[str] = []
            for once_more in range(2):  # what the first one imports and keeps is the process's
                before = resources()
                folder = tmp_path / f"{number}-{once_more}"
                driven = DrivenEnvironment(
                    name, factory(context("raas", folder)), component.capabilities
                )
                _step(name, driven, acts(_reset(driven, tasks[0]), random.Random(1)))
                driven._awaited(driven.environment.close())
                left = driven.left_tasks() if "blocking" not in component.capabilities else []
                driven._runner.close()
                left += sorted(resources() - before)
            DEMANDS.that(
                not left,
                f"{name}: after close() these are left: {', '.join(left)}",
                "that close() ends everything that the environment started",
            )


def _episode(driven: DrivenEnvironment, task: Prompt, acts: Acts) -> list[Observation]:
    try:
        return list(play(driven, task, SEED, acts, MOST_STEPS))
    except Exception as error:  # noqa: BLE001 - told to the author
        _broken(driven.name, error)


def _reset(driven: DrivenEnvironment, task: Prompt) -> Observation:
    try:
        return driven.reset(task, SEED)
    except Exception as error:  # noqa: BLE001 - told to the author
        _broken(driven.name, error)


def _step(name: str, driven: DrivenEnvironment, action: Action) -> Observation:
    try:
        return driven.step(action)
    except Exception as error:  # noqa: BLE001 - told to the author
        _broken(name, error)


def _broken(name: str, error: Exception) -> NoReturn:
    if isinstance(error, EnvironmentFailed):
        DEMANDS.broken(f"{name} {error.reason} (counted as {error.kind!r})", "a sound observation")
    DEMANDS.broken(f"{name} raised {type(error).__name__}: {error}", "an observation")


def _answers(name: str, action: Action, observation: Observation) -> None:
    called = sorted(call.id for call in action.calls)
    answered = [m.get("tool_call_id") for m in observation.messages if m["role"] == "tool"]
    DEMANDS.that(
        sorted(map(str, answered)) == called,
        f"{name}: the calls {', '.join(called)} were answered by tool messages with the ids {answered}",
        "one message of the role 'tool' for each call, with its tool_call_id, even for an invalid call",
    )


def _same(name: str, expected: list[Observation], found: list[Observation]) -> None:
    for number, (one, other) in enumerate(zip(expected, found, strict=False)):
        DEMANDS.that(
            plain(one) == plain(other),
            f"{name} gave another observation number {number}: {other!r:.300} and not {one!r:.300}",
            "that only task, seed and actions decide: use a generator of its own, created from the seed at each reset",
        )
    DEMANDS.that(
        len(expected) == len(found),
        f"{name} ended after {len(found) - 1} actions and not after {len(expected) - 1}",
        "that only task, seed and actions decide",
    )
