"""What a frozen engine says in an episode."""

from __future__ import annotations

import asyncio

import pytest
from local_engine import LocalEngine, replicas_of
from played import fixed
from raas_run import task

from astraflow_core.types import Sampling, Trajectory
from astraflow_runtime.raas.episodes.episodes import TaskFailed, TaskRunner
from astraflow_runtime.raas.episodes.policy_engine import PolicyHandle
from astraflow_runtime.raas.episodes.tokenizer import FolderTokenizer
from astraflow_runtime.raas.episodes.workflows import NamedWorkflow
from astraflow_runtime.raas.rewards.scoring import LoopScorer
from astraflow_runtime.raas.user_objects import as_workflow
from astraflow_wire.groups import ReceivedGroup

pytestmark = pytest.mark.timeout(20)


def with_judge(handle, model):
    judge = replicas_of(LocalEngine("judge"))
    return {"solver": handle, "judge": PolicyHandle(judge, FolderTokenizer(model), frozen=True)}


def rolled_out_with_judge(handles, workflow, reward=None):
    scorer = None if reward is None else LoopScorer("my_reward", reward)
    named = NamedWorkflow("my_workflow", as_workflow(workflow))

    async def run():
        return ReceivedGroup(await TaskRunner("raas-0", named, scorer, handles).run(task()))

    return asyncio.run(run())


async def both(engines, prompt):
    sequences, completions = [], []
    for engine in (engines["solver"], engines["judge"]):
        tokens = engine.render(prompt.data["prompt"])
        result = await engine.generate(tokens)
        sequences.append(engine.sequence(tokens, result))
        completions.append(engine.completion(result))
    return Trajectory(tuple(sequences), tuple(completions))


def test_replies_of_a_frozen_engine_reach_the_reward_and_are_not_trained(handle, model):
    asked = []

    async def reward(view, engines):
        judge = engines["judge"]
        verdict = await judge.generate(judge.render("x1"), Sampling(max_tokens=1))
        asked.append((judge.policy, [c.policy for c in view.completions], len(verdict.tokens)))
        return 0.5

    group = rolled_out_with_judge(with_judge(handle, model), both, reward)
    assert [s.policy for s in group.header.sequences] == ["solver"] * 4
    assert [s.reward for s in group.header.sequences] == [0.5] * 4
    assert asked == [("judge", ["solver", "judge"], 1)] * 4


def test_a_trajectory_of_frozen_sequences_only_has_nothing_to_train(handle, model):
    async def judged_only(engines, prompt):
        trajectory = await both(engines, prompt)
        return Trajectory(trajectory.sequences[1:], trajectory.completions[1:])

    with pytest.raises(TaskFailed, match="only sequences of frozen engines"):
        rolled_out_with_judge(with_judge(handle, model), judged_only, fixed)
