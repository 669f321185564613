"""A run in which some episodes never end: groups are completed by others."""

from __future__ import annotations

import json

import pytest

from astraflow_testing.runs import TABLE_RUN, User

WORKFLOW = """
import asyncio
import itertools

from astraflow_core.types import Trajectory


class EveryNinthHangs:
    def __init__(self, config, context):
        self.numbers = itertools.count(1)

    async def run_episode(self, engines, prompt):
        if next(self.numbers) % 9 == 0:
            await asyncio.Event().wait()
        engine = engines["solver"]
        tokens = engine.tokenizer.encode(prompt.data["prompt"])
        result = await engine.generate(tokens)
        return Trajectory((engine.sequence(tokens, result),), (engine.completion(result),))
"""


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_groups_are_whole_although_episodes_hang(user: User) -> None:
    user.write("hanging.py", WORKFLOW)
    user.environment["ASTRAFLOW_DRY_CALL_S"] = "none"  # the first episode hangs
    ended = user.run_table(
        "run.steps=4",
        "run.group_deadline_s=3",
        "run.refill_groups=true",
        "run.task_attempts=20",
        "run.max_consecutive_failures=1000",
        config=TABLE_RUN.replace('use = "single_turn"', 'use = "hanging:EveryNinthHangs"'),
        deadline_s=120,
    )
    assert ended.exit_code == 0, ended.text
    status = json.loads((ended.run_directory / "status.json").read_text())
    tasks, solver = status["tasks"], status["policies"]["solver"]
    assert tasks["refilled"] > 0
    assert tasks["set_aside"] == tasks["failed"] == tasks["lost"] == 0
    assert solver["accepted"] == 8 * solver["groups_accepted"] >= 4 * 32
    assert status["invariants_ok"]
    told = user.astraflow("trace", "group", "train-0", "--run", ended.run_directory, "--json")
    groups = {group["group"]: group for group in json.loads(told.out)["groups"]}
    last = groups["train-0"]
    while last["completed_by"]:
        last = groups[last["completed_by"]]
    (share,) = last["shares"]
    assert len(share["rewards"]) == 8
