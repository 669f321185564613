"""A run of four policies at different speeds, one of which has no trainer for a while: the others go on, and it comes back."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from bench.campaign.marks import given_file
from bench.campaign.verdict import Verdict, of_notes, of_updates

from astraflow_testing.runs import User, live_commands

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc"),
]
SPEEDS = {"fast": (0.05, 8), "even": (0.15, 4), "slow": (0.6, 1), "gone": (0.15, 3)}
"""Seconds of an update, and the policy's share of the prompts."""

DEADLINE_S = 5.0
"""Nobody waits for a trainer that was silent for so long; after five times that the run fails."""
GONE, BACK = "gone", "back"

PARTS = f'''
"""Each prompt is answered by one policy; the trainer of one that was killed starts once it may."""
import time
import zlib

from astraflow_core.types import Trajectory
from bench.campaign.marks import CheckingTrainer

POLICIES = {[policy for policy, (_, share) in SPEEDS.items() for _ in range(share)]}


class OneOfFour:
    def __init__(self, config, context):
        pass

    async def run_episode(self, engines, prompt):
        engine = engines[POLICIES[zlib.crc32(prompt.id.encode()) % len(POLICIES)]]
        asked = engine.render(prompt.data["prompt"])
        answered = await engine.generate(asked)
        return Trajectory((engine.sequence(asked, answered),), (engine.completion(answered),))


class Absent(CheckingTrainer):
    def __init__(self, config, context):
        super().__init__(config, context)
        if (context.run.directory / "{GONE}").exists():
            while not (context.run.directory / "{BACK}").exists():
                time.sleep(0.05)
'''
CONFIG = f"""
[run]
name = "four"
steps = 100000
max_staleness = 2
group_size = 4
episode_deadline_s = 10
deadline_s = {DEADLINE_S}
start_deadline_s = 120
lease_s = 2

[prompts]
use = "digits"
digits = 3

[workflow]
use = "four:OneOfFour"

[reward]
use = "exact"
partial = "positions"

[sampling]
max_tokens = 3

[raas]
replicas = 2
max_concurrent_episodes = 32

[checkpoint]
every = 5
"""
POLICY = """
[policies.{name}]
model = "tiny:qwen3?hidden=8&layers=1&heads=1&kv_heads=1"
batch_sequences = 16
engine = {{ use = "bench.campaign.marks:MarkingEngine" }}
trainer = {{ use = "four:Absent", step_s = {step_s} }}
algorithm = {{ use = "astraflow_testing.table:TableAlgorithm" }}
transport = {{ use = "http" }}
"""


def updates(directory: Path) -> dict[str, list[dict[str, Any]]]:
    """The lines of the updates of each policy."""
    made: dict[str, list[dict[str, Any]]] = {policy: [] for policy in SPEEDS}
    whole, _, _ = (directory / "metrics.jsonl").read_text().rpartition("\n")
    for line in map(json.loads, whole.splitlines()):
        if "step" in line:
            made[line["policy"]].append(line)
    return made


def counts(directory: Path) -> dict[str, int]:
    return {policy: len(lines) for policy, lines in updates(directory).items()}


def trainer_of(user: User, policy: str) -> int:
    (pid,) = (
        pid for pid, line in live_commands(user.marker).items() if {"trainer", policy} <= set(line)
    )
    return pid


def test_nothing_waits_for_a_trainer_that_is_gone_and_it_continues_when_it_is_back(
    user: User,
) -> None:
    root = str(Path(__file__).parents[1])
    user.environment["PYTHONPATH"] = os.pathsep.join([user.environment["PYTHONPATH"], root])
    user.write("four.py", PARTS)
    tables = (POLICY.format(name=name, step_s=step_s) for name, (step_s, _) in SPEEDS.items())
    file = user.write("four.toml", CONFIG + "".join(tables))
    process = user.start("run", file, "--no-live")
    user.wait_for(lambda: any(user.directory.glob("runs/*/metrics.jsonl")), 60)
    (directory,) = user.directory.glob("runs/*")

    def each_made(more: int, since: dict[str, int], policies: list[str]) -> None:
        user.wait_for(
            lambda: all(counts(directory)[policy] >= since[policy] + more for policy in policies),
            60,
        )

    each_made(5, dict.fromkeys(SPEEDS, 0), list(SPEEDS))
    (directory / GONE).touch()
    os.kill(trainer_of(user, GONE), signal.SIGKILL)
    silent_since = time.monotonic()
    user.wait_for(lambda: time.monotonic() > silent_since + DEADLINE_S + 1)
    left_out = counts(directory)
    each_made(6, left_out, ["slow"])
    made = {policy: count - left_out[policy] for policy, count in counts(directory).items()}
    assert made["fast"] > made["even"] > made["slow"] >= 6
    assert made[GONE] == 0
    (directory / BACK).touch()
    each_made(5, counts(directory), list(SPEEDS))
    process.send_signal(signal.SIGINT)
    ended = user.end(process, 60)
    assert ended.summary["lost"] == ended.summary["duplicated"] == 0
    assert json.loads((directory / "status.json").read_text())["invariants_ok"]
    for policy, lines in updates(directory).items():
        assert of_updates(lines) == Verdict(), policy
        assert of_notes(given_file(directory, policy)) == Verdict(), policy
    assert user.left_running() == []
