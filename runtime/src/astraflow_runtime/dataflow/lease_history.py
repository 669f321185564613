"""Which tasks were leased when, from a journal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import singledispatchmethod

from astraflow_runtime.dataflow.journal.entries import (
    AttemptFailed,
    Entry,
    Leased,
    LeasesRevoked,
    Overdue,
    Pushed,
    RaasGone,
    RaasLeft,
    RaasRegistration,
    Resumed,
    StopRequested,
)


@dataclass(frozen=True, slots=True)
class HeldLease:
    """A task leased since ``since_s`` by ``raas``, which runs ``capacity`` episodes at once."""

    task: str
    raas: str
    since_s: float
    capacity: int


@dataclass(frozen=True, slots=True)
class EndedLease:
    """A lease that ended for ``reason``, which is empty if the task's group was pushed. With ``blame`` it counts as an
    attempt of the task; ``returned``: the task goes back to the queue unless that was its last attempt."""

    lease: HeldLease
    reason: str = ""
    blame: bool = False
    returned: bool = True


class LeaseHistory:
    """The active leases after the entries so far, by task. Some entries end leases without naming
    them, such as all those of a RaaS; only this class resolves them.
    """

    def __init__(self) -> None:
        self.held: dict[str, HeldLease] = {}

    def take(self, at_s: float, entry: Entry) -> list[EndedLease]:
        """Apply an entry; returns the leases that it ends."""
        if isinstance(entry, Leased):
            self.held[entry.task] = HeldLease(entry.task, entry.raas, at_s, entry.capacity)
            return []
        ended = list(self._ended_by(entry))
        for each in ended:
            del self.held[each.lease.task]
        return ended

    @singledispatchmethod
    def _ended_by(self, entry: Entry) -> Iterator[EndedLease]:
        return iter(())

    @_ended_by.register
    def _(self, entry: Pushed) -> Iterator[EndedLease]:
        return self._of_task(entry.header.task, returned=False)

    @_ended_by.register
    def _(self, entry: Overdue) -> Iterator[EndedLease]:
        return self._of_task(entry.task, entry.reason, blame=True)

    @_ended_by.register
    def _(self, entry: AttemptFailed) -> Iterator[EndedLease]:
        message = entry.message
        return self._of_task(message.task, message.error, blame=True, returned=not message.fatal)

    @_ended_by.register
    def _(self, entry: RaasGone) -> Iterator[EndedLease]:
        return self._where(lambda lease: lease.raas == entry.raas, entry.reason, blame=True)

    @_ended_by.register
    def _(self, entry: LeasesRevoked) -> Iterator[EndedLease]:
        return self._where(lambda lease: lease.raas == entry.raas, entry.reason)

    @_ended_by.register
    def _(self, entry: RaasLeft) -> Iterator[EndedLease]:
        raas = entry.message.raas
        reason = f"RaaS {raas!r} left: {entry.message.reason}"
        return self._where(lambda lease: lease.raas == raas, reason)

    @_ended_by.register
    def _(self, entry: RaasRegistration) -> Iterator[EndedLease]:
        raas = entry.message.raas
        return self._where(lambda lease: lease.raas == raas, f"RaaS {raas!r} restarted")

    @_ended_by.register
    def _(self, entry: StopRequested) -> Iterator[EndedLease]:
        return self._where(lambda _: True, f"the run ends: {entry.reason}")

    @_ended_by.register
    def _(self, entry: Resumed) -> Iterator[EndedLease]:
        return self._where(lambda _: True, "the run was restarted")

    def _of_task(
        self, task: str, reason: str = "", *, blame: bool = False, returned: bool = True
    ) -> Iterator[EndedLease]:
        if (lease := self.held.get(task)) is not None:
            yield EndedLease(lease, reason, blame, returned)

    def _where(
        self, which: Callable[[HeldLease], bool], reason: str, *, blame: bool = False
    ) -> Iterator[EndedLease]:
        for lease in self.held.values():
            if which(lease):
                yield EndedLease(lease, reason, blame)
