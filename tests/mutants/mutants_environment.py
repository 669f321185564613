"""Environments with one mistake each; run by test_mutants.py."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest

from astraflow_core.config.models import ConfigModel
from astraflow_core.errors import PromptError
from astraflow_core.types import Action, Observation, Outcome, Prompt
from astraflow_testing.conformance.environment import EnvironmentConformance
from astraflow_testing.conformance.subject import Subject, installed

TURNS = 4
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add to the sum.",
        "parameters": {
            "type": "object",
            "properties": {"number": {"type": "integer", "minimum": 0, "maximum": 3}},
        },
    },
}


class Sums:
    """Add up to a goal that the seed draws, by text or by a tool."""

    class Config(ConfigModel):
        """Its keys."""

        tools: bool = False

    capabilities = frozenset({"deterministic", "tools"})

    def __init__(self, config: Config, context: Any) -> None:
        self.config, self.sum, self.left, self.goal = config, 0, TURNS, 0

    async def reset(self, task: Prompt, seed: int) -> Any:
        return self.begin(task, seed)

    async def step(self, action: Action) -> Any:
        return self.act(action)

    async def close(self) -> None:
        self.left = 0

    def begin(self, task: Prompt, seed: int) -> Any:
        if "from" not in task.data:
            raise PromptError(f"prompt {task.id!r} has no 'from'")
        self.sum, self.left = task.data["from"], TURNS
        self.goal = self.sum + self.drawn(seed)
        return self.observed([{"role": "user", "content": f"Make {self.goal} of {self.sum}."}])

    def drawn(self, seed: int) -> int:
        return random.Random(seed).randint(3, 40)

    def act(self, action: Action) -> Any:
        self.left -= 1
        self.sum += self.number(action)
        return self.observed(self.answers(action), float(self.sum == self.goal))

    def number(self, action: Action) -> int:
        for call in action.calls[:1]:
            arguments = call.arguments if isinstance(call.arguments, dict) else {}
            number = arguments.get("number")
            return number if isinstance(number, int) else 0
        return int(action.text) if action.text in ("1", "2", "3") else 0

    def answers(self, action: Action) -> list[dict[str, Any]]:
        said = f"The sum is {self.sum}."
        if not action.calls:
            return [{"role": "user", "content": said}]
        return [{"role": "tool", "tool_call_id": c.id, "content": said} for c in action.calls]

    def observed(self, messages: list[dict[str, Any]], reward: float = 0.0) -> Any:
        return Observation(
            tuple(messages), reward, self.outcome(), self.offered(), state=self.state()
        )

    def outcome(self) -> Any:
        if self.sum == self.goal:
            return Outcome.FINISHED
        return Outcome.TRUNCATED if self.left == 0 else None

    def offered(self) -> Any:
        return (TOOL,) if self.config.tools else ()

    def state(self) -> str | None:
        return f"{self.sum} {self.left}"


class OfSums(EnvironmentConformance):
    """The environment with ``mistake`` in the place of its class."""

    mistake: ClassVar[type[Any]] = Sums

    @pytest.fixture
    def component(self) -> Subject:
        use = f"mutants_environment:{self.mistake.__name__}"
        return installed("environment", use, {}, {"tools": True})

    @pytest.fixture
    def tasks(self) -> list[Prompt]:
        return [Prompt("one", {"from": 1}), Prompt("two", {"from": 7})]

    @pytest.fixture(autouse=True)
    def _importable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(str(Path(__file__).parent))


class TestHealthy(OfSums):
    pass


class Blocking(Sums):
    """The same in worker processes."""

    capabilities = frozenset({"deterministic", "tools", "blocking"})

    def reset(self, task: Prompt, seed: int) -> Any:  # type: ignore[override]
        return self.begin(task, seed)

    def step(self, action: Action) -> Any:  # type: ignore[override]
        return self.act(action)

    def close(self) -> None:  # type: ignore[override]
        self.left = 0


class TestHealthyInAWorker(OfSums):
    mistake = Blocking


class Duel(Sums):
    """Two roles, by turns."""

    capabilities = frozenset({"deterministic", "multi_role"})
    roles = ("first", "second")

    def observed(self, messages: list[dict[str, Any]], reward: float = 0.0) -> Any:
        role = self.roles[self.left % 2]
        return Observation(tuple(messages), {role: reward}, self.outcome(), role=role)


class TestHealthyOfTwo(OfSums):
    mistake = Duel


class Endless(Sums):
    def outcome(self) -> Any:
        return None


class TestEndless(OfSums):
    wrong = "has no bound on steps"
    caught_by = "test_an_episode_begins_goes_on_and_ends"
    mistake = Endless


class Gym(Sums):
    def observed(self, messages: list[dict[str, Any]], reward: float = 0.0) -> Any:
        return messages, reward, self.outcome() is not None, {}


class TestGym(OfSums):
    wrong = "returns a tuple, as gymnasium has it"
    caught_by = "test_an_episode_begins_goes_on_and_ends"
    mistake = Gym


class Failing(Sums):
    def observed(self, messages: list[dict[str, Any]], reward: float = 0.0) -> Any:
        return super().observed(messages, float("nan") if self.left < 3 else 0.0)


class TestFailing(OfSums):
    wrong = "gives NaN for a reward that it does not know"
    caught_by = "test_an_episode_begins_goes_on_and_ends"
    mistake = Failing


class Early(Sums):
    def begin(self, task: Prompt, seed: int) -> Any:
        super().begin(task, seed)
        return self.observed([{"role": "user", "content": "Hello."}], 0.1)


class TestEarly(OfSums):
    wrong = "rewards before anybody has acted"
    caught_by = "test_an_episode_begins_goes_on_and_ends"
    mistake = Early


class Tuples(Sums):
    def answers(self, action: Action) -> list[dict[str, Any]]:
        return [{**message, "range": (1, 2)} for message in super().answers(action)]


class TestTuples(OfSums):
    wrong = "has tuples in its messages, which arrive as lists"
    caught_by = "test_observations_survive_the_way_to_another_process"
    mistake = Tuples


class Strict(Sums):
    def number(self, action: Action) -> int:
        return int(action.text)


class TestStrict(OfSums):
    wrong = "raises what a model wrote wrong"
    caught_by = "test_every_action_of_a_model_is_answered"
    mistake = Strict


class FirstCall(Sums):
    def answers(self, action: Action) -> list[dict[str, Any]]:
        return super().answers(action)[:1]


class TestFirstCall(OfSums):
    wrong = "answers the first call of several alone"
    caught_by = "test_every_action_of_a_model_is_answered"
    mistake = FirstCall


class AsUser(Sums):
    def answers(self, action: Action) -> list[dict[str, Any]]:
        return [{"role": "user", "content": f"The sum is {self.sum}."}]


class TestAsUser(OfSums):
    wrong = "answers calls of tools as a user"
    caught_by = "test_tools_are_offered_and_their_calls_answered"
    mistake = AsUser


class KeyErrors(Sums):
    def begin(self, task: Prompt, seed: int) -> Any:
        return super().begin(Prompt(task.id, {"from": task.data["from"]}), seed)


class TestKeyErrors(OfSums):
    wrong = "raises KeyError for a prompt without its data"
    caught_by = "test_a_task_that_it_cannot_play_is_named"
    mistake = KeyErrors


class Consumes(Sums):
    def begin(self, task: Prompt, seed: int) -> Any:
        seen = super().begin(task, seed)
        task.data["from"] = self.goal
        return seen


class TestConsumes(OfSums):
    wrong = "writes into the data of the prompt"
    caught_by = "test_its_inputs_are_not_changed"
    mistake = Consumes


class Continues(Sums):
    def begin(self, task: Prompt, seed: int) -> Any:
        left = self.left if 0 < self.left < TURNS else TURNS
        super().begin(task, seed)
        self.left = left
        return self.observed([{"role": "user", "content": f"{left} turns are left."}])


class TestContinues(OfSums):
    wrong = "keeps the turns of an episode that was left in the middle"
    caught_by = "test_an_instance_plays_one_episode_after_the_other"
    mistake = Continues


class Draws(Sums):
    def drawn(self, seed: int) -> int:
        return random.randint(3, 10**6)


class TestDraws(OfSums):
    wrong = "draws from the generator of the process"
    caught_by = "test_task_seed_and_actions_decide"
    mistake = Draws


class Shares(Sums):
    sums: ClassVar[dict[str, int]] = {}

    def observed(self, messages: list[dict[str, Any]], reward: float = 0.0) -> Any:
        total = self.sums["last"] = self.sum + (self.sums.get("last", 0) if self.left < 3 else 0)
        return super().observed([{**messages[0], "content": str(total)}], reward)


class TestShares(OfSums):
    wrong = "keeps what actions change in its class"
    caught_by = "test_concurrent_instances_are_independent"
    mistake = Shares


class OneState(Sums):
    def state(self) -> str | None:
        return str(self.sum)


class TestOneState(OfSums):
    wrong = "leaves the turns that are left out of its state"
    caught_by = "test_equal_states_have_equal_continuations"
    mistake = OneState


class BareTools(Sums):
    def offered(self) -> Any:
        return (TOOL["function"],) if self.config.tools else ()


class TestBareTools(OfSums):
    wrong = "offers functions without their type"
    caught_by = "test_tools_are_offered_and_their_calls_answered"
    mistake = BareTools


class NoTools(Sums):
    def offered(self) -> Any:
        return ()


class TestNoTools(OfSums):
    wrong = "declares tools and offers none"
    caught_by = "test_tools_are_offered_and_their_calls_answered"
    mistake = NoTools


class Alone(Duel):
    def observed(self, messages: list[dict[str, Any]], reward: float = 0.0) -> Any:
        return Observation(tuple(messages), {"first": reward}, self.outcome(), role="first")


class TestAlone(OfSums):
    wrong = "names two roles, of which one acts"
    caught_by = "test_roles_are_known_and_act"
    mistake = Alone


class Undeclared(Blocking):
    capabilities = frozenset({"deterministic", "tools"})


class TestUndeclared(OfSums):
    wrong = "has plain functions and does not say that it blocks"
    caught_by = "test_blocking_is_declared_by_those_who_may_block"
    mistake = Undeclared


class NeedsItsThread(Blocking):
    started = threading.Event()
    threading.Thread(target=started.wait, args=(60,), name="module", daemon=True).start()

    def act(self, action: Action) -> Any:
        if not any(thread.name == "module" for thread in threading.enumerate()):
            raise RuntimeError("the thread of the module is lost")
        return super().act(action)


class TestNeedsItsThread(OfSums):
    wrong = "needs a thread that its module has started, which no worker has"
    caught_by = "test_it_is_played_in_a_worker_process"
    mistake = NeedsItsThread


class Sleeps(Sums):
    def act(self, action: Action) -> Any:
        time.sleep(1.3)
        return super().act(action)


class TestSleeps(OfSums):
    wrong = "is async and blocks"
    caught_by = "test_the_event_loop_is_not_blocked"
    mistake = Sleeps


class LeavesAThread(Sums):
    def begin(self, task: Prompt, seed: int) -> Any:
        self.waits = threading.Event()
        threading.Thread(target=self.waits.wait, args=(60,), daemon=True).start()
        return super().begin(task, seed)


class TestLeavesAThread(OfSums):
    wrong = "starts a thread that close() does not end"
    caught_by = "test_nothing_is_left_when_it_is_closed"
    mistake = LeavesAThread


class LeavesAProcess(Sums):
    def begin(self, task: Prompt, seed: int) -> Any:
        self.child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        return super().begin(task, seed)


class TestLeavesAProcess(OfSums):
    wrong = "starts a process that close() does not end"
    caught_by = "test_nothing_is_left_when_it_is_closed"
    mistake = LeavesAProcess
