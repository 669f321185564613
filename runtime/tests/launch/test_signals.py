"""What cuts the sleep of the launcher short."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from astraflow_runtime.launch.watch.signals import Interrupts, KillNow

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


def sleeps_again(interrupts: Interrupts) -> bool:
    """Whether what was noticed no longer keeps it awake. A child of another test may end now, and the kernel reports a
    child that is stopped or continued in the same way."""
    return any(slept(interrupts, 0.2) >= 0.2 for _ in range(10))


def test_the_end_of_a_child_is_noticed_at_once(interrupts: Interrupts) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.3)"])
    while child.poll() is None:
        assert slept(interrupts, LONG_S) < LONG_S / 2
    assert child.returncode == 0
    assert sleeps_again(interrupts) and interrupts.number is None


def test_a_child_that_ended_before_the_sleep_is_noticed_too(interrupts: Interrupts) -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)
    assert slept(interrupts, LONG_S) < LONG_S / 2


def test_after_the_first_signal_it_sleeps_and_notices_children_still(
    interrupts: Interrupts,
) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    assert slept(interrupts, LONG_S) < LONG_S / 2
    assert interrupts.number == signal.SIGTERM and interrupts.exit_code == 143
    assert sleeps_again(interrupts)
    subprocess.run([sys.executable, "-c", ""], check=True)
    assert slept(interrupts, LONG_S) < LONG_S / 2
    with pytest.raises(KillNow):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)


def test_a_terminal_that_is_closed_ends_it_cleanly_and_only_once() -> None:
    """Shell and kernel may both send the signal; later writes to the terminal fail."""
    code = """
import os, signal, sys
from astraflow_runtime.launch.watch.signals import Interrupts
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests may ignore it
interrupts = Interrupts()
with interrupts.installed():
    os.kill(os.getpid(), signal.SIGHUP)
    os.kill(os.getpid(), signal.SIGHUP)
    print("to nobody", flush=True)
sys.stderr.write(str(interrupts.exit_code))
"""
    master, terminal = os.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdout=terminal, stderr=subprocess.PIPE, text=True
    )
    os.close(terminal)
    _, said = child.communicate(timeout=LONG_S)
    assert (child.returncode, said) == (0, "143")
    with pytest.raises(OSError, match="Input/output error"):
        os.read(master, 1)  # nothing was written, and no process has the other end open
    os.close(master)


def test_a_terminal_may_be_closed_under_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    interrupts = Interrupts()
    try:
        with interrupts.installed():
            os.kill(os.getpid(), signal.SIGHUP)
            assert interrupts.number is None
    finally:
        interrupts.close()
        signal.signal(signal.SIGHUP, before)


def test_a_child_that_exits_after_the_close_has_no_effect() -> None:
    interrupts = Interrupts()
    with interrupts.installed():
        interrupts.close()
        subprocess.run([sys.executable, "-c", ""], check=True)


def test_the_handlers_of_before_come_back(request: pytest.FixtureRequest) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
    hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored under nohup
    request.addfinalizer(lambda: signal.signal(signal.SIGHUP, hangup))
    before = [signal.getsignal(number) for number in numbers]
    interrupts = Interrupts()
    with interrupts.installed():
        assert all(signal.getsignal(n) != b for n, b in zip(numbers, before, strict=True))
    interrupts.close()
    assert [signal.getsignal(number) for number in numbers] == before
