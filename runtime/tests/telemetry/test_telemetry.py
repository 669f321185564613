from __future__ import annotations

import io
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from astraflow_runtime.telemetry.logs import LineFormatter, parse_line

pytestmark = pytest.mark.timeout(20)


def line_of(message: str, *arguments: object, secret: str = "", **extra: object) -> str:
    record = logging.LogRecord("lib", logging.WARNING, "f", 1, message, arguments, None)
    for key, value in extra.items():
        setattr(record, key, value)
    return LineFormatter("raas-0", secret).format(record)


def test_a_record_is_one_line_that_can_be_read_back() -> None:
    line = line_of("slow\nby %d", 3, step=4, share=1 / 3, who="a b")
    assert parse_line(line) == ("WARNING", "raas-0", "slow ⏎ by 3 step=4 share=0.333333 who='a b'")
    assert "\n" not in line
    assert parse_line("Traceback (most recent call last):") is None


def test_a_terminal_obeys_nothing_in_a_line() -> None:
    evil = "\x1b[2J\x9b31m\x07\x7f\u2028\u202e"
    try:
        raise KeyError(evil)
    except KeyError:
        error = sys.exc_info()
    record = logging.LogRecord("l", logging.ERROR, "f", 1, "task %s", (evil,), error)
    record.task = evil
    text = LineFormatter("raas-0").format(record)
    assert r"task \u001b[2J\u009b31m\u0007\u007f\u2028\u202e" in text
    assert not [c for c in text if c != "\n" and not c.isprintable()]
    assert line_of("three\tspaces ü ⏎ 你").endswith("three\tspaces ü ⏎ 你")


def test_a_traceback_follows_indented() -> None:
    try:
        raise KeyError("x")
    except KeyError:
        record = logging.LogRecord("l", logging.ERROR, "f", 1, "failed", (), sys.exc_info())
    first, *rest = LineFormatter("a").format(record).splitlines()
    assert first.endswith("ERROR a failed")
    assert all(part.startswith("    ") for part in rest)
    assert "KeyError: 'x'" in rest[-1]


def test_tokens_are_never_written() -> None:
    line = line_of(
        "sent %s with Authorization: Bearer abc.def", "s3cr3t", secret="s3cr3t", url="x?s3cr3t"
    )
    assert "s3cr3t" not in line
    assert "abc.def" not in line


def family(
    tmp_path: Path, launched: bool, cleans_up: bool = True
) -> tuple[subprocess.Popen[bytes], int]:
    """A parent and its child, which ends with the parent if a launcher started it."""
    ends = "end_with_parent()" if cleans_up else "end_with(os.getppid(), cleans_up=False)"
    child = (
        "import os, signal, time; "
        "from astraflow_wire.host.parent import end_with, end_with_parent; "
        f"signal.signal(signal.SIGTERM, signal.SIG_IGN); {ends}; "
        f"open({str(tmp_path / 'up')!r}, 'w').close(); time.sleep(30)"
    )
    parent = (
        "import subprocess, sys, time; "
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}]); "
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid)); time.sleep(30)"
    )
    environment = {key: value for key, value in os.environ.items() if key != "ASTRAFLOW_LAUNCHER"}
    if launched:
        environment["ASTRAFLOW_LAUNCHER"] = "1"
    process = subprocess.Popen([sys.executable, "-c", parent], env=environment)
    until = time.monotonic() + 30
    while not (tmp_path / "up").exists():
        assert time.monotonic() < until
        time.sleep(0.02)
    return process, int((tmp_path / "pid").read_text())


def alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def wait_for_end(pid: int) -> None:
    until = time.monotonic() + 15
    while alive(pid):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_launched_service_ends_with_its_parent_even_if_it_ignores_sigterm(tmp_path: Path) -> None:
    parent, child = family(tmp_path, launched=True)
    parent.kill()
    parent.wait()
    wait_for_end(child)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux wakes it")
@pytest.mark.parametrize("cleans_up", [True, False])
def test_a_process_that_is_stopped_ends_with_its_parent(tmp_path: Path, cleans_up: bool) -> None:
    parent, child = family(tmp_path, launched=True, cleans_up=cleans_up)
    os.kill(child, signal.SIGSTOP)
    parent.kill()
    parent.wait()
    wait_for_end(child)


def test_a_launched_service_whose_parent_is_gone_already_ends(tmp_path: Path) -> None:
    launcher = subprocess.Popen([sys.executable, "-c", "pass"])
    orphan = (
        "import time; from astraflow_wire.host.parent import end_with_parent; "
        "end_with_parent(); time.sleep(30)"
    )
    environment = {**os.environ, "ASTRAFLOW_LAUNCHER": str(launcher.pid)}
    process = subprocess.Popen([sys.executable, "-c", orphan], env=environment)
    assert process.wait(25) != 0
    launcher.wait()  # only now its number may be given to another process


def test_a_service_started_by_hand_outlives_its_shell(tmp_path: Path) -> None:
    parent, child = family(tmp_path, launched=False)
    parent.kill()
    parent.wait()
    time.sleep(1.0)
    assert alive(child)
    os.kill(child, signal.SIGKILL)


def test_a_long_text_is_cut_line_by_line_for_a_terminal() -> None:
    from astraflow_runtime.launch.view.plain import PlainView
    from astraflow_runtime.telemetry.printable import MAX_SHOWN, shown

    text = shown("x" * 16384 + "\nshort")
    assert text == "x" * (MAX_SHOWN - 1) + "…\nshort"
    stream = io.StringIO()
    view = PlainView.__new__(PlainView)
    view._stream = stream
    view.say("y" * 16384)
    assert stream.getvalue() == "y" * (MAX_SHOWN - 1) + "…\n"
