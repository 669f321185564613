"""The live view on a real pseudo-terminal, and where there is none that could show it."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from launch_support import HERE, Table, parsed, status_of
from terminal import Terminal

from astraflow_runtime.launch.view.live import LiveView
from astraflow_runtime.launch.view.plain import PlainView
from astraflow_runtime.launch.view.views import make_view

FIGURES = ("0.800", "0.500", "0.2500", "1.500", "1.0 max 2", "40%")
TITLES = ("policy", "version", "reward", "held-out", "loss", "grad", "stale ≤2", "waits")


class Drawn:
    """A terminal with a live view of a run in ``folder``."""

    def __init__(self, table: Table, folder: Path, reflow: bool) -> None:
        self.folder = folder
        environment = {k: v for k, v in os.environ.items() if k not in ("CI", "COLUMNS", "LINES")}
        environment |= {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"}
        argv = [sys.executable, str(HERE / "drawn_view.py"), json.dumps(table), str(folder)]
        self.screen = Terminal(argv, environment, 200, 24, reflow)

    def show(self, updates: int) -> str:
        self.screen.tell(f"show {updates}")
        return self.screen.text


@pytest.fixture(params=[True, False], ids=["reflow", "cut"])
def drawn(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Drawn]:
    drawn = Drawn(table, tmp_path / "runs" / "fake-20260102-030405", request.param)
    yield drawn
    assert drawn.screen.end() == 0


@pytest.mark.slow
def test_every_size_shows_the_figures_and_only_once(drawn: Drawn) -> None:
    screen, name = drawn.screen, drawn.folder.name
    for width, height in [
        (200, 24), (120, 24), (80, 24), (120, 24), (60, 24), (40, 24), (200, 10), (80, 10), (60, 10), (40, 10), (200, 24),
    ]:  # fmt: skip
        screen.resize(width, height)
        screen.tell(f"say size {width} x {height}")
        for updates in (7, 8):
            text = drawn.show(updates)
        assert len(screen.rows) <= height
        for part in ("step 8/20", *FIGURES, *TITLES):
            assert part in text, (width, height, part, text)
        assert text.count("step ") == text.count("0.2500") == 1, text
        lines = text.split("\n")
        assert any(line.rstrip().endswith(name) and line.count(" ") == 0 for line in lines), text
        assert f"size {width} x {height}" in text or height == 10
    screen.tell("close")
    assert screen.text.count("step ") == 1
    assert screen.text.endswith("\n")


@pytest.mark.slow
def test_what_is_on_the_screen(drawn: Drawn) -> None:
    screen = drawn.screen
    screen.resize(100, 24)
    text = drawn.show(8)
    assert '4 of 10 groups rejected: "all rewards equal" (3), …' in text
    assert text.index("asked: what is three?") < text.index("says: three is [4] → reward 0.50")
    assert f"  directory  {drawn.folder}" in "".join(screen.rows)
    screen.resize(50, 24)  # between the last picture and the end
    screen.tell("close")
    assert screen.text.count("step ") == 1, screen.text
    assert "run fake: 20 steps" in screen.text


def test_short_waits_do_not_make_it_jump(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("CI", raising=False)
    stream = Tty()
    view = make_view(parsed(table), None, stream)
    status = status_of(8)
    waits = [{"who": "a", "for_whom": "b", "what": "c", "since_s": 1.9}]
    view.show(status_of(8, waits=waits), [])
    assert "a waits" not in stream.getvalue()
    view.show(status, [])
    assert "trainer solver waits 2 s" in stream.getvalue()


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("variable", "value", "live"),
    [
        ("TERM", "dumb", False),
        ("TERM", "unknown", False),
        ("TERM", "", False),
        ("CI", "true", False),
        ("CI", "0", True),
        ("NO_COLOR", "1", True),
    ],
)
def test_what_cannot_move_gets_lines(
    table: Table, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, live: bool
) -> None:
    for name in ("CI", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(variable, value)
    stream = Tty()
    view = make_view(parsed(table), None, stream, header="run fake\n")
    view.show(status_of(8), [])
    view.close()
    assert type(view) is (LiveView if live else PlainView)
    said = stream.getvalue()
    assert said.startswith("run fake\n")
    assert "step 8/20" in said
    assert live or "\x1b" not in said
    assert not re.search(r"\x1b\[[34]\dm", said) or variable != "NO_COLOR"
    assert isinstance(make_view(parsed(table), None, io.StringIO()), PlainView)
