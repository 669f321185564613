"""The periodic sweep: expired leases, silent services, and waits past their deadline."""

from __future__ import annotations

import logging
import math

from astraflow_runtime.dataflow.fleet.raas import RaasRecord
from astraflow_runtime.dataflow.journal.entries import Evicted
from astraflow_runtime.dataflow.progress import RunState
from astraflow_runtime.dataflow.state import FlowState
from astraflow_runtime.dataflow.tasks.elsewhere import prefer_others, stop_waiting
from astraflow_runtime.dataflow.tasks.lease_refusals import lease_refusal
from astraflow_runtime.dataflow.tasks.second_leases import takers
from astraflow_wire.host.disk import LONGEST_WAIT_S

log = logging.getLogger("astraflow.dataflow")


class Watch:
    """Checks timeouts; called about once a second."""

    def __init__(self, state: FlowState) -> None:
        self._state = state
        self._left_out: set[str] = set()
        self._told_held_back = False
        self._full_since, self._full_until = math.inf, -math.inf

    def sweep(self) -> None:
        """Handle everything that has timed out."""
        if self._state.progress.over:
            return
        self._write_held()
        self._leases()
        stop_waiting(self._state)
        for record in takers(self._state):
            self._state.signals.raas(record.name)
        self._silent_trainers()
        if (reason := self._unrecoverable_wait()) and not self._lacks_room():
            self._state.fail(reason)
        self._state.settle()
        self._state.advance_evaluations()

    def _write_held(self) -> None:
        """Write what the disk had no room for, and report when tasks are held back and when no
        longer.
        """
        state = self._state
        state.records.write_held()
        reason = state.held_back
        if bool(reason) != self._told_held_back:
            if reason:
                log.warning("no new tasks are leased: %s", reason)
            else:
                log.warning("tasks are leased again: there is disk space")
                state.signals.work()
            self._told_held_back = bool(reason)

    def _leases(self) -> None:
        state, now = self._state, self._state.clock()
        for record in state.fleet.sweep(now):
            silence = now - record.last_heard
            log.warning(
                "RaaS %r has been silent for %.0f s; its tasks return to the queue",
                record.name,
                silence,
            )
            state.raas_gone(record.name, f"RaaS {record.name!r} was silent for {silence:.0f} s")
        for table in (state.train, state.eval):
            for task, raas, reason in table.overdue(now):
                state.overdue(table, task, raas, reason)
                if not task.leases:
                    prefer_others(state, task, raas)

    def _silent_trainers(self) -> None:
        state, now = self._state, self._state.clock()
        silent = [
            policy
            for policy, trainer in state.trainers.items()
            if trainer.registered and not trainer.alive(now, state.config.run.deadline_s)
        ]
        for policy in silent:
            if evicted := state.streams[policy].evict_beyond_limit():
                state.records.append(Evicted(policy=policy, arrivals=evicted))
        if not self._left_out.issuperset(silent):
            state.signals.work()  # from now on it delays nothing
        self._left_out = set(silent)

    def _unrecoverable_wait(self) -> str:
        """Why the run cannot continue: a participant never registered, or is gone for good. Empty
        if it can.
        """
        state, run, now = self._state, self._state.config.run, self._state.clock()
        if state.progress.state is RunState.STARTING:
            if now - state.progress.since >= run.start_deadline_s:
                missing = [p for p, version in state.versions.newest.items() if version < 0]
                return (
                    f"after {run.start_deadline_s:.0f} s no version was announced by the trainer of "
                    + ", ".join(repr(policy) for policy in missing)
                )
            return ""
        if state.progress.ending:
            return ""
        known = [r for r in state.fleet.all() if r.last_heard >= state.started_at]
        usable = [record for record in known if not record.set_aside]
        heard = max([record.last_heard for record in usable], default=state.started_at)
        limit = run.give_up_after_s if usable else run.start_deadline_s
        present = [record for record in state.fleet.present() if not record.set_aside]
        if not present and now - heard >= limit:
            names = ", ".join(
                f"{record.name!r} ({record.set_aside or record.health})" for record in known
            )
            return f"no RaaS has reported for {now - heard:.0f} s; known: {names or 'none'}"
        for policy, trainer in state.trainers.items():
            stream = state.streams[policy]
            limit = run.give_up_after_s
            if stream.trainer_is_new:
                limit = max(limit, run.start_deadline_s)
            if trainer.must_call and not stream.done and now - trainer.last_heard >= limit:
                return (
                    f"the trainer of {policy!r} was silent for {now - trainer.last_heard:.0f} s; if a "
                    "step takes that long, raise [run] deadline_s; the limit is five times that value"
                )
        busy = (
            state.train.running
            or state.eval.running
            or any(stream.outstanding for stream in state.streams.values())
        )
        idle = now - state.last_progress
        limit = (
            LONGEST_WAIT_S if state.held_back else max(run.give_up_after_s, run.start_deadline_s)
        )
        if not busy and idle >= limit:
            reasons = "; ".join(self._why_idle(record) for record in state.fleet.present())
            return f"no progress for {idle:.0f} s: no task could be leased. {reasons}"
        return ""

    def _why_idle(self, record: RaasRecord) -> str:
        refusal = lease_refusal(self._state, record, record.capacity)
        why = refusal().what if refusal else "it requested none"
        return f"{record.name!r} serves {record.serving}: {why}"

    def _lacks_room(self) -> bool:
        """Whether the disk is or was recently full: a silent process may be waiting for room, and
        then gets its full timeout again.
        """
        run, now = self._state.config.run, self._state.clock()
        if self._state.records.lacking():
            self._full_since = min(self._full_since, now)
            self._full_until = now + max(run.give_up_after_s, run.start_deadline_s)
        elif now >= self._full_until:
            self._full_since = math.inf
        return now < min(self._full_until, self._full_since + LONGEST_WAIT_S)
