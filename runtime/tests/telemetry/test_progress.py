"""A line that moves on a terminal, and now and then a line elsewhere."""

from __future__ import annotations

import io
import os
import pty
import re
import sys
import time

import pytest

from astraflow_runtime.telemetry import progress as module
from astraflow_runtime.telemetry.progress import progress


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AFTER_S", 0.05)
    monkeypatch.setattr(module, "FRAME_S", 0.04)
    monkeypatch.setattr(module, "EVERY_S", 0.1)


def test_what_is_quick_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    said = io.StringIO()
    monkeypatch.setattr(sys, "stderr", said)
    with progress("something"):
        pass
    assert said.getvalue() == "" and sys.stderr is said


def test_without_a_terminal_lines_come_now_and_then(
    quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = io.StringIO()
    monkeypatch.setattr(sys, "stderr", said)
    with progress("model x\x1b[2J", lambda: "3 of 7 packages"):
        deadline = time.monotonic() + 10
        while said.getvalue().count("\n") < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
    lines = said.getvalue().splitlines()
    assert len(lines) >= 2 and "\x1b" not in said.getvalue()
    assert all(line.startswith("model x") and line.endswith(" s so far") for line in lines)
    assert all(", 3 of 7 packages: " in line for line in lines)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("colour", [True, False])
def test_a_terminal_has_a_line_that_moves_and_what_others_write(
    quick: None, monkeypatch: pytest.MonkeyPatch, colour: bool
) -> None:
    reader, writer = pty.openpty()
    stream = os.fdopen(writer, "w", encoding="utf-8")
    for name, value in {
        "TERM": "xterm",
        "COLUMNS": "60",
        "NO_COLOR": "" if colour else "1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stderr", stream)
    with (
        pytest.raises(KeyboardInterrupt),
        progress("model " + "long" * 30, lambda: "3 of 7 packages\x1b[2J"),
    ):
        time.sleep(0.3)
        sys.stderr.write("mine\n")
        time.sleep(0.2)
        raise KeyboardInterrupt
    assert sys.stderr is stream
    stream.flush()
    text = ""
    while (
        not text.endswith("\r\x1b[2K") or "mine" not in text
    ):  # the kernel returns it piece by piece
        text += os.read(reader, 1 << 16).decode()
    stream.close()
    os.close(reader)
    assert ("\x1b[36m" in text) is colour
    assert "\x1b[2Kmine\r\n" in text and text.endswith("\r\x1b[2K")
    lines = [re.sub(r"\x1b\[[\d;]*[mK]", "", line) for line in text.split("\r")]
    moved = [line for line in lines if "model" in line]
    assert len(moved) > 3 and all(len(line) < 60 for line in moved)
    assert all(re.search(r"\.\.\. █████░{7}, 3 of 7 packages.* \d s$", line) for line in moved)


@pytest.mark.parametrize(
    ("far", "bar"),
    [
        (", 3 of 12 packages", " ███░░░░░░░░░"),
        (", 9 of 7 packages", " ████████████"),
        (", 3 of 0 packages", ""),
        (", 3 packages so far", ""),
    ],
)
def test_a_share_has_a_bar(far: str, bar: str) -> None:
    assert module._bar(far, "█░") == bar
