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
    attempt of the task; ``returned``: the task goes back to the queue unless that was its last attempt. ``other``: the task
    had another lease, which decides what becomes of it."""

    lease: HeldLease
    reason: str = ""
    blame: bool = False
    returned: bool = True
    other: bool = False


class LeaseHistory:
    """The active leases after the entries so far, by task; ``second``: those in addition to another one. Some entries end leases
    without naming them, such as all those of a RaaS; only this class resolves them.
    """

    def __init__(self) -> None:
        self.held: dict[str, HeldLease] = {}
        self.second: dict[str, HeldLease] = {}

    @property
    def all(self) -> list[HeldLease]:
        """Every active lease."""
        return [*self.held.values(), *self.second.values()]

    def take(self, at_s: float, entry: Entry) -> list[EndedLease]:
        """Apply an entry; returns the leases that it ends. Of two that end together the one that decides is last."""
        if isinstance(entry, Leased):
            leases = self.second if entry.second else self.held
            leases[entry.task] = HeldLease(entry.task, entry.raas, at_s, entry.capacity)
            return []
        ended = list(self._ended_by(entry))
        for each in ended:
            task = each.lease.task
            if self.second.get(task) is each.lease:
                del self.second[task]
            elif task in self.second:
                self.held[task] = self.second.pop(task)
            else:
                del self.held[task]
        return ended

    @singledispatchmethod
    def _ended_by(self, entry: Entry) -> Iterator[EndedLease]:
        return iter(())

    @_ended_by.register
    def _(self, entry: Pushed) -> Iterator[EndedLease]:
        return self._of_task(entry.header.task, entry.header.raas, returned=False)

    @_ended_by.register
    def _(self, entry: Overdue) -> Iterator[EndedLease]:
        return self._of_task(entry.task, entry.raas, entry.reason, blame=True)

    @_ended_by.register
    def _(self, entry: AttemptFailed) -> Iterator[EndedLease]:
        message = entry.message
        return self._of_task(
            message.task, message.raas, message.error, blame=True, returned=not message.fatal
        )

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
        self, task: str, raas: str, reason: str = "", *, blame: bool = False, returned: bool = True
    ) -> Iterator[EndedLease]:
        """The lease of ``raas`` (empty: the only one), and the other one if that is the end of the task."""
        leases = [lease for each in (self.held, self.second) if (lease := each.get(task))]
        ended = next((lease for lease in leases if raas in ("", lease.raas)), None)
        if ended is None:
            return
        others = [lease for lease in leases if lease is not ended]
        if others and returned:
            yield EndedLease(ended, reason, other=True)
            return
        for lease in others:
            yield EndedLease(lease, f"{ended.raas!r} was first", other=True)
        yield EndedLease(ended, reason, blame, returned)

    def _where(
        self, which: Callable[[HeldLease], bool], reason: str, *, blame: bool = False
    ) -> Iterator[EndedLease]:
        for task, lease in self.held.items():
            second = self.second.get(task)
            ends = which(lease)
            if second is not None and which(second):
                yield EndedLease(second, reason, other=True)
            elif second is not None and ends:
                yield EndedLease(lease, reason, other=True)
                continue
            if ends:
                yield EndedLease(lease, reason, blame)
