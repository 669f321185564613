"""The cost of rewards, environments, workflows, prompt sources and transports."""

from __future__ import annotations

import asyncio
import functools
import itertools
from contextlib import closing
from pathlib import Path
from typing import Any

from astraflow_core.errors import UserError
from astraflow_core.types import Prompt
from astraflow_runtime.raas.user_objects import asks_engines, is_async, score_function
from astraflow_testing.benchmarks.pairs import Work
from astraflow_testing.conformance._environments.driving import DrivenEnvironment, guess, play
from astraflow_testing.conformance._transports.tensors import model
from astraflow_testing.conformance._transports.transport_rig import announcement, build
from astraflow_testing.conformance._workflows.reward_cases import view
from astraflow_testing.scripted_policies import ScriptedPolicies

SOLVER = ("solver",)
"""The policies of a workflow and a reward."""
MEBIBYTES = 4
STEPS = 64
_DEADLINE_S = 60.0


def reward(component: Any, tasks: list[Prompt]) -> Work:
    """One unit is the score of one completion of some 300 characters; every other one has the answer."""
    if asks_engines(component):
        raise UserError("the reward asks an engine, whose time is its cost")
    score = score_function(component)
    words = "Let me think about it step by step. " * 8
    seen = [
        view(task, f"{words}{said}", policies=SOLVER)
        for task in tasks
        for said in (str(task.data.get("answer", "")), "I do not know.")
    ]

    async def awaited(count: int) -> None:
        for each in itertools.islice(itertools.cycle(seen), count):
            await score(each)

    def work(count: int) -> None:
        if is_async(component):
            asyncio.run(awaited(count))
        else:
            for each in itertools.islice(itertools.cycle(seen), count):
                score(each)

    return work


def environment(component: Any, tasks: list[Prompt], capabilities: frozenset[str]) -> Work:
    """One unit is one step, in which a word is said or a tool called, the beginning of episodes included; in this
    process, also of an environment that has worker processes in a run."""
    driven = DrivenEnvironment("benchmark", component, capabilities)

    def work(count: int) -> None:
        done = 0
        for number in itertools.count():
            task = tasks[number % len(tasks)]
            for _ in play(driven, task, number, guess, min(STEPS, count - done), draws=number):
                done += 1
            if done >= count:
                driven.log.clear()
                return

    return work


def workflow(component: Any, tasks: list[Prompt]) -> Work:
    """One unit is an episode whose policy answers at once with some words: rendering, decoding, and what the workflow does
    between two requests."""
    policies = ScriptedPolicies(SOLVER)

    async def played(count: int) -> None:
        for number in range(count):
            task = tasks[number % len(tasks)]
            ended = await policies.play(
                number, functools.partial(component.run_episode, policies.engines(), task)
            )
            if isinstance(ended, BaseException):
                raise UserError(f"an episode raised {type(ended).__name__}: {ended}") from ended
        policies.asked.clear()

    def work(count: int) -> None:
        asyncio.run(played(count))

    return work


def prompt_source(component: Any) -> Work:
    """One unit is one prompt, anywhere in the set."""
    size = len(component)

    def work(count: int) -> None:
        for number in range(count):
            component[(number * 7919) % size]

    return work


class TransportWork:
    """One unit is a version of 8 MiB: published, and fetched in the same process."""

    def __init__(self, table: dict[str, Any], folder: Path) -> None:
        self._table, self._folder = table, folder
        self._published = itertools.count(1)
        self._versions = [model(seed, MEBIBYTES) for seed in (1, 2)]

    def __call__(self, count: int) -> None:
        publisher = build(self._table, self._folder, "trainer").publisher()
        receiver = build(self._table, self._folder, "raas").receiver()
        with closing(publisher), closing(receiver):
            for _ in range(count):
                version = next(self._published)
                manifest = publisher.publish(version, self._versions[version % 2])
                source = receiver.fetch(announcement(manifest, publisher.endpoints), _DEADLINE_S)
                receiver.release(source)
                publisher.retain(frozenset([version]))
