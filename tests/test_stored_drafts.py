"""After a kill of a RaaS, the new engine gets the samples of its predecessor from the rollout store of the run."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import pytest

from astraflow_testing.runs import TABLE_RUN, User, live_commands

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(150),
    pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc"),
]

LEARNING = '''
"""An engine that notes what it is given to draft from, and what it sampled."""
import json
import os

from astraflow_testing.table import TableEngine, TableEngineConfig


class Config(TableEngineConfig):
    stored_drafts_kb: int = 0


class Learning(TableEngine):
    Config = Config
    capabilities = TableEngine.capabilities

    async def generate(self, request):
        result = await super().generate(request)
        note("sampled", request.prompt.tolist(), result.tokens.tolist())
        return result

    async def learn_drafts(self, tokens, sampled, lengths):
        start = 0
        for length in lengths:
            part, flags = tokens[start : start + length], sampled[start : start + length]
            note("learned", part[~flags].tolist(), part[flags].tolist())
            start += length
        return True


def note(what, prompt, tokens):
    with open(f"{what}.{os.getpid()}", "a") as file:
        print(json.dumps([prompt, tokens]), file=file)
'''


def noted(user: User, what: str) -> dict[str, list[Any]]:
    """Process of an engine → the drafts that it recorded: prompts and their continuations."""
    return {
        file.suffix[1:]: [json.loads(line) for line in file.read_text().splitlines()]
        for file in sorted(user.directory.glob(f"{what}.*"))
    }


def test_the_engine_of_a_raas_that_was_killed_drafts_from_its_predecessor(user: User) -> None:
    user.write("learning.py", LEARNING)
    process = user.start(
        *user.table_arguments(
            "run.steps=20",
            "prompts.digits=1",  # ten prompts, which return soon
            "rollouts.groups_per_step=4",
            "policies.solver.engine.stored_drafts_kb=16",
            "policies.solver.trainer.step_s=0.05",
            config=TABLE_RUN.replace("astraflow_testing.table:TableEngine", "learning:Learning"),
        )
    )
    user.wait_for_steps(7)
    (pid,) = [
        pid
        for pid, line in live_commands(user.marker).items()
        if "raas" in line and "raas-0" in line
    ]
    os.kill(pid, signal.SIGKILL)
    ended = user.end(process, 90)
    assert ended.exit_code == 0, ended.text
    assert ended.summary["restarts"] == 1
    sampled, learned = noted(user, "sampled"), noted(user, "learned")
    assert len(sampled) == 2  # one engine before and one after
    everything = [each for own in sampled.values() for each in own]
    for host, given in learned.items():
        assert all(each in everything for each in given)
        others = [each for other, own in sampled.items() if other != host for each in own]
        own = sampled[host]
        if any(each in others and each not in own for each in given):
            return
    raise AssertionError("no engine was given what only the other one sampled")
