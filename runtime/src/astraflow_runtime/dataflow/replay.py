"""Restores the state of a dataflow by a replay of its journal. Every entry is applied through the
code that wrote it, the data policies included: they see the same prompts, groups and draws in the
same order, and reach the same state. Their decisions must equal those in the journal; a policy
whose decisions depend on anything but its calls and its seed cannot be restored, and the error
names it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import singledispatchmethod

import numpy as np

from astraflow_core.errors import AstraFlowError, RunFailed
from astraflow_runtime.dataflow.flow import Dataflow
from astraflow_runtime.dataflow.journal.entries import (
    Acknowledged,
    Announced,
    AttemptFailed,
    BatchRequested,
    Entry,
    EvaluationGivenUp,
    Evicted,
    Judged,
    Leased,
    LeasesRevoked,
    Overdue,
    PromptsConsumed,
    PromptsRejected,
    Pushed,
    RaasAsked,
    RaasDrained,
    RaasGone,
    RaasLeft,
    RaasRegistration,
    Released,
    Resumed,
    StopRequested,
    Swapped,
    TrainerRegistration,
)
from astraflow_runtime.dataflow.journal_reader import JournalListener, JournalReader, feed
from astraflow_runtime.dataflow.rows.rows import LoggedGroup
from astraflow_runtime.dataflow.tasks.admission import Offer, rejections

log = logging.getLogger(__name__)


class JournalReplay:
    """A journal listener that applies the entries to a new ``flow``. ``reader`` reads the bodies of
    groups; ``set_time`` sets the clock of the flow's state.
    """

    def __init__(
        self, flow: Dataflow, reader: JournalReader, set_time: Callable[[float], None]
    ) -> None:
        self._flow, self._state = flow, flow.state
        self._reader, self._set_time = reader, set_time
        self._count = 0
        # Each access to a method that dispatches makes it anew, which took a twelfth of a restart.
        self._apply_one: Callable[[Entry], None] = self._apply

    def run(
        self, entries: Iterable[tuple[float, Entry]], *listeners: JournalListener, after: int = 0
    ) -> int:
        """Apply all ``entries`` of the journal, or those after the first ``after``; ``listeners`` get each of them after it is
        applied. Returns the number of entries that were read.
        """
        self._count = after
        self._state.replaying = True
        try:
            return feed(entries, self, *listeners)
        finally:
            self._state.replaying = False

    def on_entry(self, at_s: float, entry: Entry) -> None:
        """Apply an entry as it was applied when it was written."""
        self._set_time(at_s)
        self._count += 1
        try:
            self._apply_one(entry)
            self._state.advance_evaluations()
        except (AstraFlowError, AssertionError, LookupError) as error:
            raise RunFailed(
                f"the journal cannot be replayed: entry {self._count} ({type(entry).__name__}) of "
                f"{self._reader.path}: {error}"
            ) from error

    @singledispatchmethod
    def _apply(self, entry: Entry) -> None:
        raise TypeError(f"{type(entry).__name__} is not a journal entry")

    @_apply.register
    def _(self, entry: PromptsConsumed) -> None:
        state, admission = self._state, self._state.admission
        offers: list[Offer] = []
        while admission.cursor.position < entry.cursor:
            offers.append(admission.take())
        last_as_then = bool(offers) and offers[-1].admitted == bool(entry.task)
        if not last_as_then or any(offer.admitted for offer in offers[:-1]):
            raise _other_decision("admit", _refusals(entry.turned, rejections(offers)))
        if entry.task:
            state.admit(offers[-1].prompt)

    @_apply.register
    def _(self, entry: Leased) -> None:
        table = self._state.table_of(entry.task)
        if entry.second:
            task = table.get(entry.task)
            assert task is not None and len(task.leases) == 1, f"{entry.task} had not one lease"
            self._state.lease_again(task, entry.raas, entry.capacity)
            return
        queued = table.get(entry.task)
        if queued is None or queued.leases:
            raise RunFailed(f"task {entry.task} was not in its queue")
        self._state.lease(table, entry.raas, entry.capacity, entry.task)

    @_apply.register
    def _(self, entry: Overdue) -> None:
        table = self._state.table_of(entry.task)
        task = table.get(entry.task)
        assert task is not None, f"task {entry.task} had already ended"
        self._state.give_back(table, task, entry.reason, blame=True, raas=entry.raas)

    @_apply.register
    def _(self, entry: AttemptFailed) -> None:
        self._flow.leasing.fail(entry.message)

    @_apply.register
    def _(self, entry: Pushed) -> None:
        header, intake = entry.header, self._flow.intake
        table = self._state.table_of(header.task)
        task = table.get(header.task)
        assert task is not None, f"task {header.task} had already ended"
        if table is self._state.eval:
            intake.score(header, task)
            return
        place = entry.body

        def read() -> bytes:
            assert place is not None
            return self._reader.body(place)

        group = LoggedGroup(header, read)
        if entry.refill:
            rest = intake.refill(group, task, place)
            assert rest.id == entry.refill, f"the rest of {header.task} was {entry.refill}"
            return
        first = intake.next_trajectory
        answer, rows, judged = intake.judge(group, np.array(entry.trained, dtype=np.int64), task)
        if (answer.status == "accepted") != entry.accepted or bool(rows) != (place is not None):
            then = "accepted" if entry.accepted else "rejected"
            raise _other_decision(
                "accept",
                f"the group of task {header.task} was {then} before; {_rulings(entry.judged)}, and now "
                f"{_rulings(judged)}",
            )
        intake.persist(rows, place)
        rollouts = self._state.rollouts
        if place is not None and rollouts.lacks(task.id) and self._reader.has_body(place):
            newest = self._state.versions.newest
            rollouts.caught_up(self._reader.body(place), task, judged, newest, first)

    @_apply.register
    def _(self, entry: BatchRequested) -> None:
        batch = self._flow.training.serve(entry.message)
        served = batch.id if batch is not None else ""
        arrivals = [row.item.arrival for row in batch.rows] if batch is not None else []
        borrowed = batch.sourced.arrivals if batch is not None else []
        if borrowed != entry.borrowed:
            raise _other_decision(
                "borrow",
                f"batch {entry.batch or 'none'} had rows {entry.borrowed} of {entry.source!r}; now it has {borrowed}",
            )
        if (served, arrivals) != (entry.batch, entry.arrivals):
            raise _other_decision(
                "key or draw",
                f"batch {entry.batch or 'none'} had rows {entry.arrivals}; now it is "
                f"{served or 'none'} with rows {arrivals}",
            )

    @_apply.register
    def _(self, entry: Acknowledged) -> None:
        trainer = self._state.trainers[entry.message.policy]
        self._state.fleet.restore_counters(entry.tokens_generated, entry.generated, entry.idle)
        trainer.first_asked, trainer.waited_s = entry.first_asked, entry.waited_s
        self._flow.training.acknowledge(entry.message)

    @_apply.register
    def _(self, entry: Released) -> None:
        self._flow.training.release(entry.message)

    @_apply.register
    def _(self, entry: TrainerRegistration) -> None:
        self._flow.training.register(entry.message)

    @_apply.register
    def _(self, entry: RaasRegistration) -> None:
        self._flow.leasing.register(entry.message)

    @_apply.register
    def _(self, entry: RaasLeft) -> None:
        self._flow.leasing.leave(entry.message)

    @_apply.register
    def _(self, entry: RaasGone) -> None:
        self._state.raas_gone(entry.raas, entry.reason)

    @_apply.register
    def _(self, entry: LeasesRevoked) -> None:
        self._state.revoke_all(entry.raas, entry.reason)

    @_apply.register
    def _(self, entry: RaasAsked) -> None:
        self._flow.pool.add(entry.message)

    @_apply.register
    def _(self, entry: RaasDrained) -> None:
        self._flow.pool.drain(entry.message)

    @_apply.register
    def _(self, entry: Announced) -> None:
        self._flow.training.announce(entry.message)

    @_apply.register
    def _(self, entry: Evicted) -> None:
        self._state.streams[entry.policy].evict_beyond_limit()

    @_apply.register
    def _(self, entry: EvaluationGivenUp) -> None:
        self._state.give_up_evaluation(entry.reason)

    @_apply.register
    def _(self, entry: StopRequested) -> None:
        self._state.stop(entry.reason)

    @_apply.register
    def _(self, entry: Resumed) -> None:
        self._state.resume()

    @_apply.register
    def _(self, entry: Swapped) -> None:
        self._flow.swapping.swap(entry.message)


def _refusals(then: list[PromptsRejected], now: list[PromptsRejected]) -> str:
    """How two lists of rejections differ."""
    before, after = (
        {(prompt, each.by) for each in refusals if not each.shadow for prompt in each.prompts}
        for refusals in (then, now)
    )
    told = [f"{prompt!r} was refused by {by!r} before" for prompt, by in sorted(before - after)]
    told += [f"{prompt!r} is now refused by {by!r}" for prompt, by in sorted(after - before)]
    return ", ".join(told) or "a different number of prompts was offered"


def _rulings(judged: list[Judged]) -> str:
    said = [
        f"{each.policy!r}: {each.by or 'the dataflow'} said {each.reason!r}"
        if each.reason
        else f"{each.policy!r} kept it"
        for each in judged
    ]
    return ", ".join(said) or "no policy had sequences in it"


def _other_decision(point: str, what: str) -> RunFailed:
    return RunFailed(
        f"a data policy decided differently at {point} ({what}). Its decisions must depend only on its "
        "calls and the seed of its context"
    )
