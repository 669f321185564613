"""When the supervisor of an engine host starts the next one, and when it gives up."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import pytest

from astraflow_core.errors import RunFailed
from astraflow_runtime.raas.engines import supervised_engine
from astraflow_runtime.raas.engines.supervised_engine import SupervisedEngine

PAUSE_S = 0.6


def starts(finished: list[int]) -> list[float]:
    """Seconds from the end of each host to the next start; hosts end at once, having finished so many
    requests. The supervisor gives up at the end."""
    ended: list[float] = []
    gaps: list[float] = []

    async def start(attempt: int):
        if ended:
            gaps.append(time.monotonic() - ended[-1])

        async def wait_end() -> str:
            ended.append(time.monotonic())
            return "was killed by SIGKILL"

        return SimpleNamespace(
            client=SimpleNamespace(finished=finished[attempt - 1]),
            start_s=0.0,
            pid=attempt,
            silence=None,
            stopped_s=lambda: 0.0,
            wait_end=wait_end,
        )

    engine = SupervisedEngine("solver", start)
    with pytest.raises(RunFailed, match="died 3 times in a row"):
        asyncio.run(engine.run())
    assert engine.restarts == len(finished) - 1
    return gaps


def test_a_host_that_worked_is_replaced_at_once(monkeypatch):
    monkeypatch.setattr(supervised_engine, "_PAUSE_S", PAUSE_S)
    after_work, after_work_again, first_failure, second_failure = starts([1, 5, 1, 0, 0])
    assert max(after_work, after_work_again, first_failure) < PAUSE_S / 2
    assert second_failure >= PAUSE_S


def test_a_host_that_never_worked_is_tried_again_after_longer_and_longer_pauses(monkeypatch):
    monkeypatch.setattr(supervised_engine, "_PAUSE_S", 0.1)
    gaps = starts([0, 0, 0])
    assert gaps[1] >= 0.1 > gaps[0]
