"""Workflows and rewards for the dry call: each does one thing that a user's may do."""

from __future__ import annotations

import faulthandler
import importlib
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import replace

from launch_fakes import Plain

from astraflow_core.errors import PreflightError
from astraflow_core.protocols.workflow import PolicyEngine
from astraflow_core.types import Prompt, RewardReport, Trajectory, TrajectoryView


class Ask(Plain):
    async def run_episode(
        self, engines: Mapping[str, PolicyEngine], prompt: Prompt
    ) -> Trajectory | None:
        solver = engines["solver"]
        asked = solver.render(prompt.data["prompt"])
        result = await solver.generate(asked)
        return Trajectory((solver.sequence(asked, result),), (solver.completion(result),))


class RewardsItself(Ask):
    async def run_episode(
        self, engines: Mapping[str, PolicyEngine], prompt: Prompt
    ) -> Trajectory | None:
        played = await super().run_episode(engines, prompt)
        return replace(played, rewards={"solver": 0.5}) if played else None


async def names_two(view: TrajectoryView) -> RewardReport:
    return RewardReport(0.5, {"correct": 1.0, "form": 0.0})


def names_one(view: TrajectoryView) -> RewardReport:
    return RewardReport(0.5, {"correct": 1.0})


class AskJudge(Ask):
    async def run_episode(
        self, engines: Mapping[str, PolicyEngine], prompt: Prompt
    ) -> Trajectory | None:
        judge = engines["judge"]
        said = judge.completion(await judge.generate(judge.render("1+1=")))
        raise ValueError(f"no verdict in {said.text!r}")


class Misspelt(Ask):
    async def run_episode(self, engines: object, prompt: Prompt) -> Trajectory | None:
        raise KeyError(prompt.data["qestion"])


class Unbuilt(Ask):
    def __init__(self, config: object, context: object) -> None:
        raise ValueError("no such role")


class Misconfigured(Ask):
    async def run_episode(self, engines: object, prompt: Prompt) -> Trajectory | None:
        raise PreflightError("template has no {answer}")


class Unimported(Ask):
    async def run_episode(self, engines: object, prompt: Prompt) -> Trajectory | None:
        importlib.import_module("no_such_parser")
        return None


class Hangs(Ask):
    async def run_episode(self, engines: object, prompt: Prompt) -> Trajectory | None:
        time.sleep(3600)
        return None


class Crashes(Plain):
    """Also while it is built."""

    def __init__(self, config: object, context: object) -> None:
        sys.stdout.write("no licence found\n")
        os._exit(7)


def unimported(view: TrajectoryView) -> float:
    importlib.import_module("no_such_parser")
    return 1.0


def wants_a_key(view: TrajectoryView) -> float:
    return float(view.data["answr"])


async def blocks_the_loop(view: TrajectoryView) -> float:
    time.sleep(3600)
    return 1.0


def takes_long(view: TrajectoryView) -> float:
    time.sleep(3600)
    return 1.0


def is_text(view: TrajectoryView) -> str:
    return view.text


def leaves(view: TrajectoryView) -> float:
    sys.exit("enough")


def dies(view: TrajectoryView) -> float:
    faulthandler.disable()  # pytest's would print the stack of a death that is meant
    os.kill(os.getpid(), signal.SIGSEGV)


def good(view: TrajectoryView) -> float:
    assert view.data == {"prompt": "1+1=", "answer": "2"}
    assert len(view.completions[0].tokens) > 0
    return 1.0


async def async_raises(view: TrajectoryView) -> float:
    raise ValueError("no such unit: furlong")


def stops_in_main_thread_only(view: TrajectoryView) -> float:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # as rewards with a time limit of their own do
    return 0.0
