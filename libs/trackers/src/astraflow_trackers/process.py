"""The launcher's half: starts the process of a tracker, calls it, and kills it at a deadline."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HOST = "astraflow_trackers.host"
START_S = 60.0
"""Least time for importing the backend, whatever the deadline of a call."""
END_S = 5.0
"""Time in which the process ends once its input has ended."""
_PIECE = 1 << 16


class TrackerFailed(Exception):
    """The tracker raised, missed a deadline, or its process ended; the text says which, for people."""


class TrackerProcess:
    """One process; ``log`` gets what it prints. Of one thread; :meth:`stop` may be called by any."""

    def __init__(
        self,
        spec: Mapping[str, Any],
        log: Path,
        python: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._spec, self._deadline_s = spec, float(spec["deadline_s"])
        self._log, self._rest = log, b""
        try:
            with log.open("ab") as output:
                self._process = subprocess.Popen(
                    [python or sys.executable, "-m", HOST],
                    env={**os.environ, **(environment or {})},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=output,
                    start_new_session=True,  # Ctrl-C is for the launcher
                )
        except OSError as error:
            raise TrackerFailed(f"its process cannot be started: {error}") from error
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input, self._output = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._input, False)
        os.set_blocking(self._output, False)

    def start(self) -> None:
        """Build the tracker."""
        self._exchange(self._spec, "its start", max(START_S, self._deadline_s))

    @property
    def pid(self) -> int:
        """The id of the process, and of its session."""
        return self._process.pid

    def call(self, method: str, *arguments: Any, deadline_s: float | None = None) -> str:
        """The value of the method, after ``deadline_s`` at most (default: that of the tracker). :class:`TrackerFailed`
        if there is none; then only :meth:`kill` is left to call."""
        deadline_s = self._deadline_s if deadline_s is None else deadline_s
        return self._exchange([method, list(arguments)], f"{method}()", deadline_s)

    def metrics(self, steps: list[tuple[str, int, float, Mapping[str, float]]]) -> None:
        """Several steps in one call."""
        self._exchange(["metrics", steps], "metrics()", self._deadline_s)

    def close(self) -> None:
        """Let it end; kill what is left."""
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        self.kill()

    def stop(self) -> None:
        """End it and its children at once; a call that waits for it fails."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """:meth:`stop`, and leave nothing of it."""
        self.stop()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                assert stream is not None
                stream.close()

    # -- the pipe --------------------------------------------------------------------------------

    def _exchange(self, content: Any, what: str, deadline_s: float) -> str:
        until = time.monotonic() + deadline_s
        late = f"{what} took longer than {deadline_s:g} s"
        try:
            self._write(json.dumps(content).encode() + b"\n", until, late)
            line = self._line(until, late)
        except OSError as error:
            raise TrackerFailed(self._ended(what)) from error
        answer = json.loads(line)
        if "error" in answer:
            raise TrackerFailed(f"{what} failed: {answer['error']}")
        return answer["value"] or ""

    def _write(self, content: bytes, until: float, late: str) -> None:
        left = memoryview(content)
        while left:
            self._wait(self._input, selectors.EVENT_WRITE, until, late)
            with contextlib.suppress(BlockingIOError):
                left = left[os.write(self._input, left[:_PIECE]) :]

    def _line(self, until: float, late: str) -> bytes:
        while b"\n" not in self._rest:
            self._wait(self._output, selectors.EVENT_READ, until, late)
            piece = os.read(self._output, _PIECE)
            if not piece:
                raise BrokenPipeError
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _wait(self, file: int, event: int, until: float, late: str) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(file, event)
            if not selector.select(max(0.0, until - time.monotonic())):
                raise TrackerFailed(late)

    def _ended(self, what: str) -> str:
        """Its process has closed the pipe: how it ended, with its last line."""
        try:
            code = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            return f"it closed its pipe during {what}"
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        lines = self._log.read_text(encoding="utf-8", errors="replace").split("\n")
        said = next((line for line in reversed(lines) if line.strip()), "")
        return f"its process {how} during {what}" + (
            f"; it said: {said.strip()[:300]}" if said else ""
        )
