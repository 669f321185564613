"""The server's half: starts the process that calls plugins, and ends it when a plugin takes too long."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from astraflow_contrib_pages.views.host import HEAD, read_frame

HOST = "astraflow_contrib_pages.views.host"
VIEW_S = 5.0
"""Longest that one plugin may take for a trajectory."""
START_S = 30.0
"""The longest that the process may take to start, in addition to that."""
MOST_BYTES = 64 << 20
_END_S = 5.0


class ViewsFailed(Exception):
    """A plugin has no views of a trajectory; the text says why, for people."""


class ViewsProcess:
    """Starts with the first call, and again after a call that failed. One thread at a time may call it."""

    def __init__(self, deadline_s: float = VIEW_S) -> None:
        self._deadline_s = deadline_s
        self._process: subprocess.Popen[bytes] | None = None
        self._end: weakref.finalize[[subprocess.Popen[bytes]], ViewsProcess] | None = None

    def ask(self, plugins: Sequence[str], plugin: str, trajectory: Mapping[str, Any]) -> list[Any]:
        """Views of ``plugin`` as it returned them, unchecked. ``plugins``: all of the run."""
        began, allowed_s = time.monotonic(), self._deadline_s
        if self._process is None or self._process.poll() is not None:
            self._start()
            allowed_s += START_S
        assert self._process is not None and self._process.stdin and self._process.stdout
        request = msgspec.msgpack.encode([list(plugins), plugin, trajectory, self._deadline_s])
        late = threading.Timer(allowed_s, _kill, (self._process,))
        late.start()
        try:
            self._process.stdin.write(len(request).to_bytes(HEAD, "big") + request)
            self._process.stdin.flush()
            answer = read_frame(self._process.stdout, MOST_BYTES)
            found = msgspec.msgpack.decode(answer) if answer else None
        except OSError:
            found = None
        except (ValueError, msgspec.MsgspecError) as error:
            self.close()
            raise ViewsFailed(f"its answer cannot be read: {error}") from error
        finally:
            late.cancel()
        if found is None:
            raise ViewsFailed(self._ended(time.monotonic() - began))
        if "error" in found:
            raise ViewsFailed(found["error"])
        views: list[Any] = found["views"]
        return views

    def close(self) -> None:
        """End the process."""
        if self._end is not None:
            self._end()
        self._end = None

    def _start(self) -> None:
        self.close()
        path = os.pathsep.join(filter(None, sys.path))
        given = {key: value for key, value in os.environ.items() if key != "ASTRAFLOW_TOKEN"}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", HOST],
                env={**given, "PYTHONPATH": path},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise ViewsFailed(f"its process cannot be started: {error}") from error
        self._end = weakref.finalize(self, _end, self._process)

    def _ended(self, took_s: float) -> str:
        """How the process ended, which it did."""
        assert self._process is not None
        self.close()
        code = self._process.returncode
        if took_s >= self._deadline_s and -code in (signal.SIGALRM, signal.SIGKILL):
            return f"it took longer than {self._deadline_s:g} s and was ended"
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        return f"its process {how}"


def _kill(process: subprocess.Popen[bytes]) -> None:
    """The process, and what a plugin has started in it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(0.5)
    _kill(process)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_S)
    if process.stdout is not None:
        process.stdout.close()
