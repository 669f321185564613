"""Ctrl-C and SIGTERM: the first one asks for a clean finish, the second one ends everything at once. SIGHUP, the end of
the terminal, is a first SIGTERM and never a second one: shell and kernel may both send it. And the end of a child, which is
to be noticed at once."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections.abc import Iterator, Sequence
from types import FrameType


class KillNow(BaseException):
    """A second signal: stop everything at once."""


class Interrupts:
    """The signals that arrived, and a sleep that they and the end of a child process cut short."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._terminals = [stream for stream in (1, 2) if os.isatty(stream)]
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._asked = threading.Lock()
        self._kill = False

    @property
    def exit_code(self) -> int:
        """128 + the first signal, as shells have it."""
        assert self.number is not None
        return 128 + self.number

    def sleep(self, seconds: float) -> None:
        """Sleep; the first signal ends it early, and so does a child that ended since the last sleep. Raises :class:`KillNow` if
        another thread has asked twice."""
        readable, _, _ = select.select([self._reader], [], [], seconds)
        if readable:
            os.read(self._reader, _PIPE_BYTES)
        if self._kill:
            raise KillNow

    def ask(self) -> None:
        """From another thread, instead of a Ctrl-C: the first time for a clean finish, the second time for the end of everything."""
        with self._asked:
            self._kill = self.number is not None
            if self.number is None:
                self.number = signal.SIGINT
            self._wake()

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        if self.number is not None:
            ignore_signals()
            raise KillNow
        self.number = number
        self._wake()

    def _hung_up(self, number: int, frame: FrameType | None) -> None:
        _forget(self._terminals)
        if self.number is None:
            self._arrived(signal.SIGTERM, frame)

    def _child_ended(self, number: int, frame: FrameType | None) -> None:
        self._wake()

    def _wake(self) -> None:
        if self._writer != _CLOSED:  # a child may end late
            with contextlib.suppress(BlockingIOError):  # a full pipe wakes as well
                os.write(self._writer, b"!")

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Handle SIGINT, SIGTERM, SIGHUP (unless it is ignored, as by nohup) and SIGCHLD inside the block. Off the main thread nothing is installed,
        since Python forbids it: the caller's own handling stays, and sleeps last."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._arrived) for number in _NUMBERS}
        before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, self._child_ended)
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            before[signal.SIGHUP] = signal.signal(signal.SIGHUP, self._hung_up)
        try:
            yield
        finally:
            for number, handler in before.items():
                # None: a handler that was not set from Python and cannot be put back.
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def close(self) -> None:
        """Free the pipe."""
        with self._asked:
            writer, self._writer = self._writer, _CLOSED
        os.close(self._reader)
        os.close(writer)


_NUMBERS = (signal.SIGINT, signal.SIGTERM)
_IGNORED_AT_END = (*_NUMBERS, signal.SIGHUP)
_PIPE_BYTES = 65536
_CLOSED = -1


def ignore_signals() -> None:
    """From here on nothing interrupts the end of the run; main thread only, else nothing happens."""
    if threading.current_thread() is threading.main_thread():
        for number in _IGNORED_AT_END:
            signal.signal(number, signal.SIG_IGN)


def _forget(terminals: Sequence[int]) -> None:
    """Redirect the streams of a closed terminal to nothing, since writing to them is an error."""
    with open(os.devnull, "wb") as nowhere:
        for stream in terminals:
            os.dup2(nowhere.fileno(), stream)
