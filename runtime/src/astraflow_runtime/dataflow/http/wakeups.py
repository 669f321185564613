"""Wakes waiting requests (for notices, a task or a batch), so that none has to poll."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Waiter:
    """One waiting request. ``tried`` is the change of the state that it has checked;
    ``superseded``: the same caller has sent a newer request.
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.tried = -1
        self.superseded = False

    def wake(self) -> None:
        """Let it check the state again."""
        self._event.set()

    async def wait(self, timeout_s: float) -> None:
        """Wait until woken or timed out."""
        timer = asyncio.get_running_loop().call_later(timeout_s, self._event.set)
        try:
            await self._event.wait()
        finally:
            timer.cancel()
            self._event.clear()


class Wakeups:
    """The :class:`astraflow_runtime.dataflow.signals.Signals` of the running service.

    Each RaaS and each trainer has at most one waiting request. When there is work, one waiting RaaS
    is woken, and the next one when that one has checked, so that a push does not wake a thousand.
    ``work_available`` returns whether waking one can be useful; calls that the event loop found at once ask it once.
    """

    def __init__(self) -> None:
        self.work_available: Callable[[], bool] = lambda: True
        self._raas: OrderedDict[str, Waiter] = OrderedDict()
        self._trainers: dict[str, Waiter] = {}
        self._listeners: set[asyncio.Event] = set()
        self._changes = 0
        self._will_pass_on = False
        self.changed = asyncio.Event()

    def work(self) -> None:
        """There may be a task to lease."""
        self._changes += 1
        if self._raas and not self._will_pass_on:
            self._will_pass_on = True
            asyncio.get_running_loop().call_soon(self._pass_on_once)

    def _pass_on_once(self) -> None:
        self._will_pass_on = False
        self.pass_on()

    def pass_on(self) -> None:
        """Wake the next RaaS that has not checked the current state, if that can be useful."""
        if not self._raas or not self.work_available():
            return
        for waiter in self._raas.values():
            if waiter.tried < self._changes:
                waiter.wake()
                return

    def raas(self, name: str) -> None:
        """There is a notice for one RaaS."""
        if (waiter := self._raas.get(name)) is not None:
            waiter.wake()

    def new_raas(self, name: str) -> None:
        """A RaaS registered: a pending request of its predecessor ends empty."""
        self._supersede(self._raas, name)

    def every_raas(self) -> None:
        """There is a notice for every RaaS."""
        for waiter in self._raas.values():
            waiter.wake()

    def trainer(self, policy: str) -> None:
        """The trainer of ``policy`` may get a batch, or the end."""
        if (waiter := self._trainers.get(policy)) is not None:
            waiter.wake()

    def new_trainer(self, policy: str) -> None:
        """A trainer registered: a pending request of its predecessor ends empty."""
        self._supersede(self._trainers, policy)

    def state(self) -> None:
        """The state of the run changed."""
        self.changed.set()
        self.report()

    def report(self) -> None:
        """There is a new balance report."""
        for listener in self._listeners:
            listener.set()

    @contextmanager
    def listening(self) -> Iterator[asyncio.Event]:
        """An event that is set with each report and whenever the state of the run changes."""
        listener = asyncio.Event()
        self._listeners.add(listener)
        try:
            yield listener
        finally:
            self._listeners.remove(listener)

    def looked(self, waiter: Waiter) -> None:
        """A request has checked the current state."""
        waiter.tried = self._changes

    def raas_waits(self, name: str) -> Waiter:
        """A RaaS waits for tasks; its older request ends empty."""
        return self._replace(self._raas, name)

    def trainer_waits(self, policy: str) -> Waiter:
        """A trainer waits for a batch; its older request ends empty."""
        return self._replace(self._trainers, policy)

    def done(self, name: str, waiter: Waiter) -> None:
        """A request was answered."""
        for waiters in (self._raas, self._trainers):
            if waiters.get(name) is waiter:
                del waiters[name]

    @staticmethod
    def _supersede(waiters: dict[str, Waiter], name: str) -> None:
        if (older := waiters.pop(name, None)) is not None:
            older.superseded = True
            older.wake()

    def _replace(self, waiters: dict[str, Waiter], name: str) -> Waiter:
        self._supersede(waiters, name)
        waiter = waiters[name] = Waiter()
        return waiter
