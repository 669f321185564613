"""Deadlines do not run while the process that set them is stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from astraflow_wire.host.active_clock import SUSPENDED_AFTER_S, TICK_S, ActiveClock, active_time

pytestmark = pytest.mark.timeout(30)

WAITER = """
import asyncio, sys
from astraflow_wire.host import active_clock as presence

async def main():
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    print("waiting", flush=True)
    try:
        line = await asyncio.wait_for(reader.readline(), 2.5)
        print("heard", line.decode().strip(), flush=True)
    except TimeoutError:
        print("gave up", flush=True)

presence.run(main())
"""


def test_a_long_gap_counts_as_one_tick() -> None:
    now = 100.0
    clock = ActiveClock(lambda: now)
    began = clock()
    for _ in range(10):
        now += TICK_S
        clock.look()
    assert clock() - began == pytest.approx(10 * TICK_S)
    now += SUSPENDED_AFTER_S + 60
    assert clock() - began == pytest.approx(11 * TICK_S)
    assert clock.away_s == pytest.approx(SUSPENDED_AFTER_S + 60 - TICK_S)
    now += SUSPENDED_AFTER_S  # a machine that is only slow
    assert clock() - began == pytest.approx(11 * TICK_S + SUSPENDED_AFTER_S)


@pytest.mark.slow
def test_the_clock_of_a_process_that_runs_is_the_ordinary_one() -> None:
    began, ordinary = active_time(), time.monotonic()
    time.sleep(SUSPENDED_AFTER_S + 0.5)  # it is read by its thread only
    assert active_time() - began == pytest.approx(time.monotonic() - ordinary, abs=0.3)


@pytest.mark.slow
def test_a_forked_child_has_a_clock_that_goes() -> None:
    active_time()
    if not (child := os.fork()):
        began = active_time()
        time.sleep(SUSPENDED_AFTER_S + 0.5)
        os._exit(0 if active_time() - began > SUSPENDED_AFTER_S else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("stopped", "said"), [(True, "heard you"), (False, "gave up")])
def test_a_process_that_was_stopped_still_gets_the_reply(stopped: bool, said: str) -> None:
    waiter = subprocess.Popen(
        [sys.executable, "-c", WAITER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert waiter.stdin and waiter.stdout
    try:
        assert waiter.stdout.readline() == "waiting\n"
        if stopped:
            os.kill(waiter.pid, signal.SIGSTOP)
            time.sleep(4)
            os.kill(waiter.pid, signal.SIGCONT)
            time.sleep(0.5)
            waiter.stdin.write("you\n")
            waiter.stdin.flush()
        assert waiter.stdout.readline().strip() == said
        assert waiter.wait(10) == 0
    finally:
        waiter.kill()
