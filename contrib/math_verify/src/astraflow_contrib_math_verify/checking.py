"""Worker processes that check answers, as the process sees them that asks."""

from __future__ import annotations

import asyncio
import atexit
import enum
import os
import socket
import struct
import subprocess
import sys
from collections import OrderedDict, deque
from collections.abc import Callable

import msgspec

from astraflow_contrib_math_verify.fork_server import (
    LIMIT,
    LONG,
    READY,
    RIGHT,
    UNREADABLE,
    WRONG,
    CheckRequest,
)
from astraflow_core.errors import WorkflowError

_LENGTH = struct.Struct("<I")
MODULE = "astraflow_contrib_math_verify.fork_server"
_START_S = 120.0
_REMEMBERED = 4096
_ATTEMPTS = 3
_MOST_LONG = 4
"""Checks that have given up their place since they take long, so that others do not wait behind them."""
_RECYCLE_AFTER = 2000
"""Checks after which a worker is replaced, so that what sympy keeps stays bounded."""


class CheckOutcome(enum.Enum):
    """The outcome of a check: ``SPENT``: the answer used up its CPU time or memory; ``UNREADABLE``: the expected answer
    is no mathematics, or costs too much itself."""

    RIGHT = "right"
    WRONG = "wrong"
    SPENT = "spent"
    UNREADABLE = "unreadable"


_OUTCOMES = {
    RIGHT: CheckOutcome.RIGHT,
    WRONG: CheckOutcome.WRONG,
    UNREADABLE: CheckOutcome.UNREADABLE,
}


class _Ended(Exception):
    """The worker is gone."""


class _Worker:
    """Our end of a worker that may not have started yet."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection, self._greeted, self.calls = connection, False, 0
        self.usable = True

    async def started(self) -> None:
        """Wait until it is ready. :class:`_Ended` if it is gone."""
        if not self._greeted:
            self._greeted = await self._next_byte() == READY

    async def check(self, request: CheckRequest, takes_long: Callable[[], None]) -> CheckOutcome:
        """Its reply, preceded at most once by a notice that it ``takes_long``; it then exits on its own. :class:`_Ended` if it
        had exited before."""
        self.calls += 1
        body = msgspec.msgpack.encode(request)
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_sendall(self._connection, _LENGTH.pack(len(body)) + body)
        except OSError:
            raise _Ended from None
        await self._next_byte()  # it has begun
        outcome = CheckOutcome.UNREADABLE  # if it ends before it has read the expected answer
        try:
            while (said := await self._next_byte()) not in (RIGHT, WRONG, UNREADABLE):
                if said == LONG:
                    self.usable = False
                    takes_long()
                else:
                    outcome = CheckOutcome.SPENT
        except _Ended:
            return outcome
        return _OUTCOMES[said]

    async def _next_byte(self) -> bytes:
        try:
            said = await asyncio.get_running_loop().sock_recv(self._connection, 1)
        except OSError:
            said = b""
        if not said:
            raise _Ended
        return said

    def close(self) -> None:
        """Close the link to the process, which then exits by itself: between two checks, or when its CPU time is used
        up."""
        self._connection.close()


class Checkers:
    """``size`` workers, each busy with one answer at a time, forked from one process that starts with the first check; and
    a few more while there are answers that take long. All end when this object's process does. Calls may come from one
    event loop after the other."""

    def __init__(self, size: int, memory_mb: int) -> None:
        self._size, self._memory_mb = size, memory_mb
        self._idle: deque[_Worker] = deque()
        self._spent: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._server: tuple[subprocess.Popen[bytes], socket.socket] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.replaced = 0

    async def check(
        self, expected: str, given: str, cpu_s: float, deadline_s: float
    ) -> CheckOutcome:
        """Whether ``given`` says the same as ``expected``. :class:`WorkflowError` if no worker starts, or none answers
        within ``deadline_s``, which says nothing about the answer: its own limit is CPU time."""
        if (expected, given) in self._spent:
            return CheckOutcome.SPENT
        if self._loop is not asyncio.get_running_loop():
            self._loop, self._places = asyncio.get_running_loop(), asyncio.Semaphore(self._size)
            self._long = 0
        given_up = False

        def give_up_place() -> None:
            nonlocal given_up
            if given_up or self._long == _MOST_LONG:
                return
            given_up = True
            self._long += 1
            self._places.release()

        request = CheckRequest(expected, given, cpu_s)
        await self._places.acquire()
        try:
            outcome = await self._checked(request, deadline_s, give_up_place)
        finally:
            if given_up:
                self._long -= 1
            else:
                self._places.release()
        if outcome is CheckOutcome.SPENT:
            self._spent[expected, given] = None
            if len(self._spent) > _REMEMBERED:
                self._spent.popitem(last=False)
        return outcome

    async def _checked(
        self, request: CheckRequest, deadline_s: float, takes_long: Callable[[], None]
    ) -> CheckOutcome:
        for _ in range(_ATTEMPTS):
            worker, outcome = await self._started(), None
            try:
                async with asyncio.timeout(deadline_s):
                    outcome = await worker.check(request, takes_long)
                    return outcome
            except TimeoutError:
                raise WorkflowError(
                    f"a worker gave no verdict within {deadline_s:g} s (deadline_s); is the machine overloaded?"
                ) from None
            except _Ended:  # it was killed while it was idle
                continue
            finally:
                self._give_back(worker, outcome)
        raise WorkflowError(f"{_ATTEMPTS} of its worker processes were killed")

    async def _started(self) -> _Worker:
        """A worker that is ready, be it one that was asked for when another ended."""
        for _ in range(self._size + 2):
            worker = self._idle.popleft() if self._idle else self._forked()
            if not self._idle:  # the next, if this one takes long
                self._idle.append(self._forked())
            try:
                async with asyncio.timeout(_START_S):
                    await worker.started()
                return worker
            except (_Ended, TimeoutError):
                worker.close()
            except BaseException:
                worker.close()
                raise
        raise WorkflowError(
            "its worker process does not start; the log of the RaaS says why. Is math-verify installed as a whole? "
            "pip install 'astraflow-contrib-math-verify[runtime]'"
        )

    def _forked(self) -> _Worker:
        """A new worker, without waiting for it."""
        if self._server is None or self._server[0].poll() is not None:
            self.close()
            self._server = _fork_server()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._server[1], [LIMIT.pack(self._memory_mb)], [theirs.fileno()])
            except OSError:  # the server has ended: so has this worker, before it began
                self.close()
        return _Worker(ours)

    def _give_back(self, worker: _Worker, outcome: CheckOutcome | None) -> None:
        """Keep a worker for the next check."""
        done = worker.usable and outcome in (CheckOutcome.RIGHT, CheckOutcome.WRONG)
        if done and worker.calls < _RECYCLE_AFTER and len(self._idle) <= self._size:
            self._idle.append(worker)
            return
        worker.close()
        self.replaced += not done

    def close(self) -> None:
        """End the fork server, and with it the workers."""
        while self._idle:
            self._idle.pop().close()
        if self._server is not None:
            (process, requests), self._server = self._server, None
            requests.close()
            process.kill()
            process.wait()


def _fork_server() -> tuple[subprocess.Popen[bytes], socket.socket]:
    requests, asked = socket.socketpair()
    with asked:
        process = subprocess.Popen(
            [sys.executable, "-m", MODULE, str(asked.fileno()), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            pass_fds=(asked.fileno(),),
            start_new_session=True,
        )
    return process, requests


_SHARED: dict[tuple[int, int, int], Checkers] = {}


def checkers(size: int, memory_mb: int) -> Checkers:
    """The checkers that all rewards of this process share; a forked process has its own."""
    key = (os.getpid(), size, memory_mb)
    if key not in _SHARED:
        _SHARED[key] = Checkers(size, memory_mb)
        atexit.register(_SHARED[key].close)
    return _SHARED[key]
