"""What cuts the sleep of the launcher short."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from astraflow_core.launch.signals import Interrupts, KillNow

LONG_S = 20.0


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    found = Interrupts()
    with found.installed():
        yield found
    found.close()


def slept(interrupts: Interrupts, seconds: float) -> float:
    began = time.monotonic()
    interrupts.sleep(seconds)
    return time.monotonic() - began


def test_the_end_of_a_child_is_noticed_at_once(interrupts: Interrupts) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.3)"])
    assert 0.1 < slept(interrupts, LONG_S) < LONG_S / 2
    assert child.wait() == 0
    # Noticed once: it does not keep the launcher from sleeping.
    assert slept(interrupts, 0.3) >= 0.3
    assert interrupts.number is None


def test_a_child_that_ended_before_the_sleep_is_noticed_too(interrupts: Interrupts) -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)
    assert slept(interrupts, LONG_S) < LONG_S / 2


def test_after_the_first_signal_it_sleeps_and_notices_children_still(
    interrupts: Interrupts,
) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    assert slept(interrupts, LONG_S) < LONG_S / 2
    assert interrupts.number == signal.SIGTERM and interrupts.exit_code == 143
    assert slept(interrupts, 0.3) >= 0.3
    subprocess.run([sys.executable, "-c", ""], check=True)
    assert slept(interrupts, LONG_S) < LONG_S / 2
    with pytest.raises(KillNow):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)


def test_a_child_that_ends_after_all_is_closed_harms_nobody() -> None:
    interrupts = Interrupts()
    with interrupts.installed():
        interrupts.close()
        subprocess.run([sys.executable, "-c", ""], check=True)


def test_the_handlers_of_before_come_back() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)
    before = [signal.getsignal(number) for number in numbers]
    interrupts = Interrupts()
    with interrupts.installed():
        assert all(signal.getsignal(n) != b for n, b in zip(numbers, before, strict=True))
    interrupts.close()
    assert [signal.getsignal(number) for number in numbers] == before
