"""Names the workflow or reward that blocks the event loop of its RaaS, and interrupts it.

While one callback of the loop blocks, no other episode, no request and no signal handler of asyncio
runs. A thread watches the loop and interrupts the main thread with a signal, whose handler raises
in the blocking code.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from types import CodeType, FrameType

from astraflow_engine_host.failures import StackFrame, is_ours, place_of
from astraflow_wire.host.active_clock import active_time

log = logging.getLogger("astraflow.raas")

BEAT_S = 0.25
WARN_S = 5.0
"""How long the loop is blocked before a warning is logged. Interruptions come no earlier, unless
the deadline of episodes is shorter.
"""

REMEDY = (
    "async code must not block: await slow operations, or move them into a reward with a plain `def score`, which "
    "runs in worker processes"
)
SIGNAL = signal.SIGURG
"""Ignored by default, so that a late one is harmless."""

_STEP = asyncio.events.Handle._run.__code__

playing: ContextVar[str] = ContextVar("playing", default="")
"""The user code that runs in this task and its child tasks: ``"reward 'exact'"``; empty outside
episodes.
"""


@dataclass(frozen=True, slots=True)
class Block:
    """``who`` has blocked the event loop for ``seconds``; ``place`` is ``file:line in function``."""

    who: str
    place: str
    seconds: float

    @property
    def what(self) -> str:
        """The message: what blocks, and the next step."""
        return f"blocked the event loop for {self.seconds:.1f} s at {self.place}; {REMEDY}"

    def __str__(self) -> str:
        return f"{self.who} {self.what}"


class LoopBlocked(BaseException):
    """Raised in code that blocks the event loop. Not an ``Exception``, so that `except Exception`
    around the blocking call, often with a retry, does not catch it.
    """

    def __init__(self, block: Block) -> None:
        self.block = block
        super().__init__(block.what)


@dataclass(frozen=True, slots=True)
class _Seen:
    """The blocking callback: its outermost frame, when it was first seen, and the heartbeat before
    it.
    """

    root: FrameType
    since_s: float
    beat_s: float


class LoopWatchdog:
    """Watches the event loop of the main thread.

    ``callers``: our code objects that call user code, and what each calls (``"workflow
    'single_turn'"``). ``interrupt_s``: seconds after which a block is interrupted; later ones are
    interrupted after ``WARN_S`` at most. ``blocked`` is called in the watchdog's thread at every
    check during a block, with the ``seconds`` so far and ``interrupt_s``.
    """

    def __init__(
        self,
        callers: Mapping[CodeType, str],
        interrupt_s: float,
        blocked: Callable[[Block, float], None] = lambda block, left_s: None,
        *,
        beat_s: float = BEAT_S,
        warn_s: float = WARN_S,
    ) -> None:
        self._callers, self._interrupt_s, self._blocked = callers, interrupt_s, blocked
        self._beat_s, self._warn_s = beat_s, warn_s
        self._last_beat_s = active_time()
        self._due: _Seen | None = None
        self._ended = threading.Event()
        self._beating: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start watching the running loop; it must be that of the main thread, which alone gets
        signals.
        """
        signal.signal(SIGNAL, self._interrupted)
        self._beat(asyncio.get_running_loop())
        threading.Thread(target=self._watch, name="loop-watchdog", daemon=True).start()

    def stop(self) -> None:
        """Stop watching; a pending signal has no effect."""
        self._ended.set()
        self._due = None
        if self._beating is not None:
            self._beating.cancel()

    def hurry(self) -> None:
        """The process is about to exit: interrupt blocking code at once. Safe in a signal handler."""
        self._interrupt_s = self._warn_s = 2 * self._beat_s

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self._last_beat_s = active_time()
        self._beating = loop.call_later(self._beat_s, self._beat, loop)

    # -- the thread ------------------------------------------------------------------------------

    def _watch(self) -> None:
        seen: _Seen | None = None
        told: _Seen | None = None
        asked_s = 0.0
        while not self._ended.wait(self._beat_s / 2):
            found = self._blocking_call(seen)
            if found is None or found is not seen:
                seen, told, asked_s = found, None, 0.0
                continue
            block = self._block(seen)
            if told is None and block.seconds >= self._warn_s:
                told = seen
                log.warning("%s", block)
            self._blocked(block, max(0.0, self._interrupt_s - block.seconds))
            if block.seconds - asked_s >= self._interrupt_s:
                self._due, asked_s = seen, block.seconds
                self._interrupt_s = min(self._interrupt_s, self._warn_s)
                signal.pthread_kill(threading.main_thread().ident or 0, SIGNAL)

    def _blocking_call(self, seen: _Seen | None) -> _Seen | None:
        """The callback that blocks now; ``seen`` if it is still the same one."""
        beat_s, now = self._last_beat_s, active_time()
        if now - beat_s < 2 * self._beat_s:
            return None
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        stack = _stack(frame)
        if not stack or beat_s != self._last_beat_s:
            return None
        if seen is not None and seen.root is stack[-1] and seen.beat_s == beat_s:
            return seen
        return _Seen(stack[-1], now, beat_s)

    def _block(self, seen: _Seen) -> Block:
        stack = _stack(sys._current_frames().get(threading.main_thread().ident or 0))
        whose = (self._callers[f.f_code] for f in stack if f.f_code in self._callers)
        who = next(whose, "a callback of the event loop")
        return Block(who, _user_frame(stack or [seen.root]), active_time() - seen.since_s)

    # -- the main thread -------------------------------------------------------------------------

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        """Raise in the main thread, if it is still within the user code that was seen."""
        due, self._due = self._due, None
        stack = _stack(frame)
        if due is None or due.beat_s != self._last_beat_s or not stack or stack[-1] is not due.root:
            return
        if (who := playing.get()) and self._is_users(stack):
            raise LoopBlocked(Block(who, _user_frame(stack), active_time() - due.since_s))

    def _is_users(self, stack: list[FrameType]) -> bool:
        """Whether none of our code is called from the user's: it is not safe to interrupt."""
        for depth, frame in enumerate(stack):
            if is_ours(frame.f_code.co_filename):
                return depth > 0 and frame.f_code in self._callers
        return True


def _stack(frame: FrameType | None) -> list[FrameType]:
    """The frames of the callback that the loop runs, innermost first; empty if it runs none."""
    found: list[FrameType] = []
    while frame is not None and frame.f_code is not _STEP:
        found.append(frame)
        frame = frame.f_back
    return found if frame is not None else []


def _user_frame(stack: list[FrameType]) -> str:
    """``file:line in function`` of the innermost frame of the user's code."""
    return place_of(
        [StackFrame(f.f_code.co_filename, f.f_lineno, f.f_code.co_name) for f in reversed(stack)]
    )
