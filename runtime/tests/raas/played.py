"""Workflows and tasks played over an engine in this process."""

from __future__ import annotations

import asyncio

from raas_run import task

from astraflow_core.types import Trajectory
from astraflow_runtime.raas.episodes.episodes import TaskRunner
from astraflow_runtime.raas.episodes.workflows import NamedWorkflow
from astraflow_runtime.raas.rewards.scoring import LoopScorer
from astraflow_runtime.raas.user_objects import as_workflow
from astraflow_wire.groups import ReceivedGroup


async def ask(engine, prompt):
    tokens = engine.render(prompt.data["prompt"])
    return tokens, await engine.generate(tokens)


async def once(engines, prompt):
    engine = engines["solver"]
    tokens, result = await ask(engine, prompt)
    return Trajectory((engine.sequence(tokens, result),), (engine.completion(result),))


def rolled_out(handle, workflow, reward=None, name="my_workflow", **changes):
    scorer = None if reward is None else LoopScorer("my_reward", reward)
    runner = TaskRunner(
        "raas-0", NamedWorkflow(name, as_workflow(workflow)), scorer, {"solver": handle}
    )

    async def run():
        return ReceivedGroup(await runner.run(task(**changes)))

    return asyncio.run(run())


async def fixed(view):
    return 0.25
