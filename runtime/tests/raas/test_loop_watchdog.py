"""What blocks the event loop of a RaaS is named and interrupted; everything else is left alone."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time

import pytest
from local_engine import LocalEngine, replicas_of
from raas_run import task
from test_episodes import once

from astraflow_runtime.raas.episodes import loop_watchdog
from astraflow_runtime.raas.episodes.episodes import TaskFailed, TaskRunner
from astraflow_runtime.raas.episodes.loop_watchdog import LoopWatchdog
from astraflow_runtime.raas.episodes.policy_engine import PolicyHandle
from astraflow_runtime.raas.episodes.tokenizer import FolderTokenizer
from astraflow_runtime.raas.episodes.workflows import NamedWorkflow
from astraflow_runtime.raas.rewards.scoring import LoopScorer
from astraflow_runtime.raas.user_objects import as_workflow
from astraflow_wire.host import active_clock

pytestmark = pytest.mark.timeout(30)
FOREVER_S = 20.0


@pytest.fixture
def handle(model):
    return PolicyHandle(replicas_of(LocalEngine()), FolderTokenizer(model))


@pytest.fixture(autouse=True)
def _signal_as_before():
    before = signal.getsignal(loop_watchdog.SIGNAL)
    yield
    signal.signal(loop_watchdog.SIGNAL, before)


def watched(handle, workflow, reward, interrupt_s=0.3, **changes):
    """What a task of ``workflow`` and ``reward`` ends with, and the blocks that were seen."""
    runner = TaskRunner(
        "raas-0",
        NamedWorkflow("played", as_workflow(workflow)),
        LoopScorer("scored", reward),
        {"solver": handle},
    )
    seen = []

    async def run():
        watchdog = LoopWatchdog(
            runner.callers,
            interrupt_s,
            lambda block, left_s: seen.append(block),
            beat_s=0.05,
            warn_s=0.2,
        )
        watchdog.start()
        try:
            await runner.run(task(**changes))
        except TaskFailed as error:
            return str(error)
        finally:
            watchdog.stop()
        return ""

    return active_clock.run(run()), seen


async def fixed(view):
    return 0.5


async def blocks(view):
    time.sleep(FOREVER_S)


async def blocks_again_and_again(view):
    while True:
        with contextlib.suppress(Exception):
            time.sleep(FOREVER_S)


@pytest.mark.parametrize("reward", [blocks, blocks_again_and_again])
def test_a_reward_that_blocks_is_named_and_fails_its_task(handle, caplog, reward):
    began = time.monotonic()
    said, seen = watched(handle, once, reward, group_size=4)
    # One of four was interrupted; its siblings had not begun to block.
    assert time.monotonic() - began < FOREVER_S / 2
    line = reward.__code__.co_firstlineno
    assert said.startswith("reward 'scored' blocked the event loop for ")
    assert f"{__file__}:{line + (1 if reward is blocks else 3)} in {reward.__name__}; " in said
    assert "`def score`, which runs in worker processes" in said
    assert {block.who for block in seen} == {"reward 'scored'"}
    (warning,) = [r.getMessage() for r in caplog.records if r.name == loop_watchdog.log.name]
    assert f"{__file__}:" in warning and "reward 'scored' blocked" in warning


def test_a_workflow_that_blocks_in_a_task_of_its_own_is_interrupted(handle):
    async def part():
        time.sleep(FOREVER_S)

    async def grouped(engines, prompt):
        async with asyncio.TaskGroup() as parts:
            parts.create_task(part())

    said, _ = watched(handle, grouped, fixed, group_size=1)
    assert said.startswith("workflow 'played' blocked the event loop for ")
    assert f"{__file__}:" in said and " in part; " in said


def test_our_own_code_is_named_but_never_interrupted(handle, monkeypatch):
    asked = []
    interrupted = LoopWatchdog._interrupted

    def counted(self, number, frame):
        asked.append(number)
        interrupted(self, number, frame)

    monkeypatch.setattr(LoopWatchdog, "_interrupted", counted)
    ours = {"asked": asked, "time": time}
    text = "def slow():\n    while not asked:\n        time.sleep(0.05)\n"
    exec(compile(text, active_clock.__file__, "exec"), ours)

    async def asks(engines, prompt):
        ours["slow"]()
        return await once(engines, prompt)

    said, seen = watched(handle, asks, fixed, group_size=1)
    assert (said, asked) == ("", [loop_watchdog.SIGNAL])
    assert {block.who for block in seen} == {"workflow 'played'"}


def test_a_signal_that_comes_after_the_block_does_nothing(handle):
    async def impatient(engines, prompt):
        signal.raise_signal(loop_watchdog.SIGNAL)
        return await once(engines, prompt)

    assert watched(handle, impatient, fixed, group_size=2) == ("", [])


def test_code_that_waits_is_left_alone(handle):
    async def patient(engines, prompt):
        for _ in range(10):
            await asyncio.sleep(0.05)
        return await once(engines, prompt)

    said, _ = watched(handle, patient, fixed, group_size=2)
    assert said == ""


def test_an_episode_that_wants_to_end_its_process_fails_alone(handle):
    async def leaves(view):
        raise SystemExit(7)

    said, _ = watched(handle, once, leaves, group_size=2)
    assert said.startswith("reward 'scored' tried to exit its process: SystemExit: 7 (")
    assert f"{__file__}:" in said and "raise an error instead" in said
