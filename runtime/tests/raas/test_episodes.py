"""Episodes and tasks over an engine in this process: groups, errors for people, pauses, sampling."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from local_engine import LocalEngine, replicas_of
from played import ask, fixed, once, rolled_out
from raas_run import task

from astraflow_core.errors import EnvironmentFailed, WorkflowError
from astraflow_core.types import GenerateResult, Sampling, Sequence, Trajectory
from astraflow_engine_host.protocol import HostGone
from astraflow_runtime.raas.episodes.episodes import TaskFailed, TaskRunner
from astraflow_runtime.raas.episodes.policy_engine import PolicyHandle, TaskPolicyEngine
from astraflow_runtime.raas.episodes.tokenizer import FolderTokenizer
from astraflow_runtime.raas.episodes.workflows import NamedWorkflow
from astraflow_runtime.raas.rewards.scoring import LoopScorer
from astraflow_runtime.raas.user_objects import as_workflow
from astraflow_wire.messages import SamplingMessage

pytestmark = pytest.mark.timeout(20)
PROMPT = np.array([14, 3, 4], np.int32)


def test_time_in_which_an_engine_host_is_stopped_does_not_count(handle):
    stopped = [True]

    async def late(engines, prompt):
        for _ in range(3):
            await asyncio.sleep(0.4)
            handle.replicas.members[0].engine.stopped_s += 0.4 if stopped[0] else 0.0
        return await once(engines, prompt)

    assert rolled_out(handle, late, fixed, group_size=1, deadline_s=0.8).header.trajectories == 1
    stopped[0] = False
    with pytest.raises(TaskFailed, match="1 of 1 episodes"):
        rolled_out(handle, late, fixed, group_size=1, deadline_s=0.8)


def test_a_group_holds_all_episodes_with_their_rewards(handle):
    group = rolled_out(handle, once, fixed, eval_set="held_out")
    assert group.header.trajectories == 4 and group.header.eval_set == "held_out"
    assert [s.reward for s in group.header.sequences] == [0.25] * 4
    assert [s.min_version for s in group.header.sequences] == [0] * 4
    assert all(s.truncated for s in group.header.sequences)
    assert [turn.role for turn in group.header.turns] == ["prompt", "assistant"]
    assert handle.tokens_generated == 12 and handle.prompt_tokens == 16


def test_each_episode_is_reported_when_it_ends_not_with_the_longest_of_its_group(handle):
    gate, order = asyncio.Event(), iter(range(4))

    async def one_is_long(engines, prompt):
        if next(order) == 3:
            await gate.wait()
        return await once(engines, prompt)

    async def run():
        runner = TaskRunner(
            "raas-0", NamedWorkflow("w", as_workflow(one_is_long)), LoopScorer("r", fixed),
            {"solver": handle},
        )  # fmt: skip
        ended = 0
        three = asyncio.Event()

        def episode_ended():
            nonlocal ended
            ended += 1
            if ended == 3:
                three.set()

        group = asyncio.create_task(runner.run(task(), episode_ended))
        await asyncio.wait_for(three.wait(), 5)
        assert not group.done()
        gate.set()
        await group
        await asyncio.sleep(0)
        assert ended == 4

    asyncio.run(run())


def test_rejected_episodes_are_counted_and_left_out(handle):
    count = iter(range(4))

    async def picky(engines, prompt):
        return await once(engines, prompt) if next(count) % 2 else None

    group = rolled_out(handle, picky, fixed)
    assert (group.header.trajectories, group.header.rejected) == (2, 2)

    async def none(engines, prompt):
        return None

    assert rolled_out(handle, none).header.rejected == 4


def test_a_workflow_may_reward_itself_per_sequence(handle):
    async def own(engines, prompt):
        engine = engines["solver"]
        tokens, result = await ask(engine, prompt)
        return Trajectory(
            (engine.sequence(tokens, result, 0.5), engine.sequence(tokens, result, -1.0))
        )

    assert [s.reward for s in rolled_out(handle, own).header.sequences] == [0.5, -1.0] * 4


def failing(function):
    async def workflow(engines, prompt):
        return function(await once(engines, prompt), engines["solver"])

    return workflow


async def raises(engines, prompt):
    return {}["missing"]


async def hangs(engines, prompt):
    await asyncio.sleep(60)


async def bad_reward(view):
    raise OSError("disk full")


async def slow_reward(view):
    await asyncio.sleep(60)


async def nan_reward(view):
    return float("nan")


@pytest.mark.parametrize(
    ("workflow", "reward", "changes", "message"),
    [
        (raises, fixed, {}, r"^workflow 'my_workflow' raised on prompt 'p0': KeyError: 'missing' \(.*test_episodes.py:\d+\); the prompt's data has "),
        (hangs, fixed, {"deadline_s": 0.1}, r"workflow 'my_workflow': 4 of 4 episodes of prompt 'p0' missed the deadline of 0.1 s"),
        (once, slow_reward, {"deadline_s": 0.1}, r"4 of 4 episodes .*; 4 of them were waiting for reward 'my_reward'"),
        (once, bad_reward, {}, r"^reward 'my_reward' raised on prompt 'p0': OSError: disk full \(.*test_episodes.py:\d+\)$"),
        (once, nan_reward, {}, r"reward 'my_reward' returned nan for policy 'solver' on prompt 'p0'"),
        (once, None, {}, r"returned no reward for prompt 'p0', and the run has no .reward. table; add one, or "),
        (failing(lambda t, e: 3), fixed, {}, r"returned int; expected a Trajectory"),
        (failing(lambda t, e: Trajectory(())), fixed, {}, r"without sequences"),
        (
            failing(lambda t, e: Trajectory(t.sequences, t.completions, {}, {"m": "x"})),
            fixed, {}, r"metric 'm' = 'x'; expected a number",
        ),
        (
            failing(lambda t, e: Trajectory((e.sequence(np.empty(0, np.int32), _result(2)),))),
            fixed, {}, r"whose first token is trained",
        ),
        (failing(lambda t, e: ready(0, versions=(0, 0, 0))), fixed, {}, r"first token has a version"),
        (failing(lambda t, e: ready(0, logprobs=(-1, 0, 0))), fixed, {}, r"a log-prob but no version"),
    ],
)  # fmt: skip
def test_failures_are_reported_in_one_line(handle, workflow, reward, changes, message):
    with pytest.raises(TaskFailed, match=message) as caught:
        rolled_out(handle, workflow, reward, **changes)
    assert not caught.value.fatal and "\n" not in str(caught.value)
    assert not handle.replicas.members[0].engine.host.client.engine.running


def _result(count):
    zeros = np.zeros(count, np.int32)
    return GenerateResult("r", zeros, zeros.astype(np.float32), zeros, "stop")


def test_a_prompt_that_the_workflow_names_is_not_named_again(handle):
    async def naming(engines, prompt):
        raise WorkflowError(f"prompt {prompt.id!r}: no door")

    with pytest.raises(TaskFailed, match="no door") as caught:
        rolled_out(handle, naming, fixed)
    assert str(caught.value).count("prompt '") == 1


def test_a_prompt_over_the_context_is_fatal_and_says_the_numbers(handle):
    changes = {"sampling": SamplingMessage(max_tokens=62)}
    with pytest.raises(
        TaskFailed, match=r"prompt of 4 tokens \+ max_tokens 62 = 66 .*'solver', 64 tokens"
    ) as caught:
        rolled_out(handle, once, fixed, **changes)
    assert caught.value.fatal


def test_what_a_task_group_raises_is_reported_as_if_it_stood_alone(handle):
    async def several(engines, prompt):
        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(raises(engines, prompt))

    async def too_long(engines, prompt):
        async with asyncio.TaskGroup() as group:
            group.create_task(raises(engines, prompt))
            group.create_task(once(engines, prompt))
            await asyncio.sleep(0)

    with pytest.raises(TaskFailed, match=r"raised on prompt 'p0': KeyError: 'missing'") as caught:
        rolled_out(handle, several, fixed)
    assert not caught.value.fatal
    with pytest.raises(TaskFailed, match="64 tokens") as caught:
        rolled_out(handle, too_long, fixed, sampling=SamplingMessage(max_tokens=62))
    assert caught.value.fatal


def test_a_lost_host_fails_the_task_for_another_attempt(handle):
    async def gone(request):
        raise HostGone("the engine host is lost")

    handle.replicas.members[0].engine.generate = gone
    with pytest.raises(TaskFailed, match="engine host is lost") as caught:
        rolled_out(handle, once, fixed)
    assert not caught.value.fatal


def test_stop_texts_and_pins_reach_the_engine(model):
    engines = replicas_of(LocalEngine(), serving=lambda: 4)
    handle = PolicyHandle(engines, FolderTokenizer(model))
    seen = []

    async def spy(request):
        seen.append(request)
        return _result(2)

    handle.replicas.members[0].engine.generate = spy
    sampling = SamplingMessage(max_tokens=3, temperature=0.5, stop=["12", "="])
    rolled_out(handle, once, fixed, sampling=sampling, pinned={"solver": 4})
    assert seen[0].pinned_version == 4 and seen[0].sampling.temperature == 0.5
    encode = handle.tokenizer.encode
    assert seen[0].sampling.stop_sequences == (
        tuple(encode("12").tolist()),
        tuple(encode("=").tolist()),
    )
    assert len({request.id for request in seen}) == 4


class Scripted(LocalEngine):
    """Returns the given results in turn and keeps the requests."""

    def __init__(self, *parts):
        super().__init__()
        self.parts, self.requests = list(parts), []

    async def generate(self, request):
        self.requests.append(request)
        tokens, version, reason = self.parts.pop(0)
        count = len(tokens)
        return GenerateResult(
            request.id,
            np.array(tokens, np.int32),
            np.full(count, -version, np.float32),
            np.full(count, version, np.int32),
            reason,
        )


def continued(model, sampling, *parts):
    engine = Scripted(*parts)
    handle = PolicyHandle(replicas_of(engine), FolderTokenizer(model))
    return engine, asyncio.run(TaskPolicyEngine(handle, sampling).generate(PROMPT))


def test_an_aborted_request_continues_with_what_it_has(model):
    engine, result = continued(
        model, Sampling(max_tokens=6), ([5, 6], 1, "abort"), ([], 1, "abort"), ([7, 1], 2, "stop")
    )
    assert result.tokens.tolist() == [5, 6, 7, 1] and result.finish_reason == "stop"
    assert result.versions.tolist() == [1, 1, 2, 2] and result.logprobs.tolist() == [-1, -1, -2, -2]
    assert [r.prompt.tolist() for r in engine.requests] == [
        [14, 3, 4],
        [14, 3, 4, 5, 6],
        [14, 3, 4, 5, 6],
    ]
    assert [r.sampling.max_tokens for r in engine.requests] == [6, 4, 4]


def test_an_abort_at_the_last_token_is_the_end(model):
    _, result = continued(model, Sampling(max_tokens=2), ([5, 6], 1, "abort"))
    assert result.finish_reason == "length" and result.tokens.tolist() == [5, 6]


def test_a_stop_sequence_across_the_seam_of_a_continuation_ends_it(model):
    sampling = Sampling(max_tokens=9, stop_sequences=((6, 7, 8),))
    _, result = continued(
        model, sampling, ([5, 6], 1, "abort"), ([7, 8, 9, 9, 9, 9, 9], 2, "length")
    )
    assert result.tokens.tolist() == [5, 6, 7, 8] and result.finish_reason == "stop"
    assert len(result.logprobs) == len(result.versions) == 4


class Mortal(LocalEngine):
    """Its host dies ``deaths`` times over a request; it is noticed, and replaced, a moment later."""

    def __init__(self, deaths):
        super().__init__()
        self.deaths, self.requests = deaths, []

    async def generate(self, request):
        self.requests.append(request)
        if len(self.requests) <= self.deaths:
            self.host.client.lost = "was killed"
            loop = asyncio.get_running_loop()
            loop.call_later(0.02, self.die)
            loop.call_later(0.05, self.start)
            raise HostGone("the engine host was killed")
        return await super().generate(request)


def served_by(engine, model):
    replicas = replicas_of(engine, serving=lambda: 0 if engine.host else None)
    engine.changed = replicas.changed
    return PolicyHandle(replicas, FolderTokenizer(model))


def test_an_episode_survives_its_host(model):
    engine = Mortal(deaths=2)
    handle = served_by(engine, model)
    result = asyncio.run(TaskPolicyEngine(handle, Sampling(max_tokens=2)).generate(PROMPT))
    assert len(result.tokens) == 2
    assert [r.prompt.tolist() for r in engine.requests] == [PROMPT.tolist()] * 3


def test_a_request_that_kills_every_host_is_given_up(model):
    engine = Mortal(deaths=99)
    handle = served_by(engine, model)
    with pytest.raises(HostGone, match="was killed"):
        asyncio.run(TaskPolicyEngine(handle, Sampling(max_tokens=2)).generate(PROMPT))
    assert len(engine.requests) == 3


def test_a_request_waits_for_a_host(model):
    engine = Mortal(deaths=0)
    handle = served_by(engine, model)
    engine.die()

    async def scenario():
        asked = asyncio.create_task(
            TaskPolicyEngine(handle, Sampling(max_tokens=2)).generate(PROMPT)
        )
        await asyncio.sleep(0.05)
        assert not asked.done() and engine.requests == []
        engine.start()
        return await asked

    assert len(asyncio.run(scenario()).tokens) == 2


def test_an_empty_prompt_is_refused(handle):
    engine = TaskPolicyEngine(handle, Sampling(max_tokens=2))
    with pytest.raises(WorkflowError, match="empty prompt"):
        asyncio.run(engine.generate(np.empty(0, np.int32)))


def ready(reward, logprobs=(0, 0, 0), versions=(-1, 0, 0)):
    mask = np.array([False, True, True])
    columns = (mask, np.array(logprobs, np.float32), np.array(versions, np.int32))
    sequence = Sequence("solver", np.arange(3, dtype=np.int32), *columns)
    return Trajectory((sequence,), rewards={"solver": reward})


@pytest.mark.parametrize(
    ("turn_rewards", "told"),
    [
        ({2: float("nan")}, r"has nan at token 2; expected a number within ±1e\+14"),
        ({2: 1e30}, r"has 1e\+30 at token 2; expected a number within"),
        ({2: "much"}, "has 'much' at token 2; expected a number"),
        ({3: 1.0}, "names token 3; the sequence has tokens 0 to 2"),
        ({-1: 1.0}, "names token -1; the sequence has tokens 0 to 2"),
        ({1.5: 1.0}, "names token 1.5; the sequence has tokens 0 to 2"),
        ({0: 1.0}, "names token 0, which no policy sampled"),
        ([0.5], "is a list; expected a mapping of positions"),
    ],
)
def test_rewards_of_turns_that_cannot_be_are_refused(handle, turn_rewards, told):
    async def workflow(engines, prompt):
        trajectory = ready(1.0)
        return replace(
            trajectory, sequences=(replace(trajectory.sequences[0], turn_rewards=turn_rewards),)
        )

    with pytest.raises(
        TaskFailed,
        match=f"workflow 'my_workflow' on prompt .* sequence 0 whose turn_rewards {told}",
    ):
        rolled_out(handle, workflow)


def test_at_the_group_deadline_what_is_done_is_pushed(handle):
    began, ended = [], []

    async def every_other(engines, prompt):
        began.append(prompt.id)
        number = len(began)
        if number % 2:
            return ready(float(number))
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    group = rolled_out(handle, every_other, group_deadline_s=0.3)
    assert [s.reward for s in group.header.sequences] == [1.0, 3.0]
    assert (group.header.trajectories, group.header.late, group.header.rejected) == (2, 2, 0)
    assert ended == [2, 4]


def test_a_group_of_which_nothing_is_done_at_the_group_deadline_has_failed(handle):
    async def hangs(engines, prompt):
        await asyncio.Event().wait()

    with pytest.raises(TaskFailed, match=r"4 of 4 .* deadline of 0.1 s \(\[run\] group_deadline_s"):
        rolled_out(handle, hangs, group_deadline_s=0.1)


@pytest.mark.parametrize(("kind", "told"), [("timeout", "timeout"), ("No such!", "other")])
def test_an_environment_that_fails_is_no_reward_and_names_its_kind(handle, kind, told):
    async def play(engines, prompt):
        raise EnvironmentFailed(kind, "environment 'maze' gave no answer")

    with pytest.raises(TaskFailed, match=r"prompt 'p0': .*'maze' gave no answer") as caught:
        rolled_out(handle, play, fixed)
    assert (caught.value.environment, caught.value.fatal) == (told, False)
