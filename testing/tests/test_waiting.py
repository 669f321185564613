"""The suites tell a call that waits from one that a busy machine holds up."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from astraflow_testing.conformance._processes.waiting import waited

WORK_S = 0.2


def work() -> None:
    end = time.thread_time() + WORK_S
    while time.thread_time() < end:
        pass


def test_a_call_that_sleeps_waited() -> None:
    assert waited(lambda: time.sleep(0.2)) > 0.19


def test_a_call_that_has_to_share_its_processor_did_not() -> None:
    if not Path("/proc/thread-self/schedstat").exists():
        pytest.skip("this system does not say how long a thread was ready to run")
    told: list[bool] = []

    def shared() -> None:
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
            try:
                for process in (0, other.pid):  # the thread's affinity ends with it
                    os.sched_setaffinity(process, {min(os.sched_getaffinity(0))})
                while len(told) < 10 and not any(
                    told
                ):  # a machine that stands still, stands still for both
                    began = time.monotonic()
                    slept = waited(work)
                    longer = time.monotonic() - began - WORK_S
                    told.append(longer > 0.1 > slept + 0.05)
            finally:
                other.kill()

    thread = threading.Thread(target=shared)
    thread.start()
    thread.join()
    assert any(told)
