"""The sweep: leases that ended, services that fell silent, waits that have gone on for too long."""

from __future__ import annotations

import logging

from astraflow_core.dataflow.entries import Evicted
from astraflow_core.dataflow.progress import RunState
from astraflow_core.dataflow.state import FlowState

log = logging.getLogger("astraflow.dataflow")

LONGEST_FULL_S = 86400.0
"""How long a run waits for room on a full disk."""


class Watch:
    """Called about once a second."""

    def __init__(self, state: FlowState) -> None:
        self._state = state
        self._left_out: set[str] = set()

    def sweep(self) -> None:
        """Act on everything whose time is up."""
        if self._state.progress.over:
            return
        self._state.look_for_room()
        self._leases()
        self._silent_trainers()
        self._hopeless_waits()
        self._state.settle()
        self._state.advance_evaluations()

    def _leases(self) -> None:
        state, now = self._state, self._state.clock()
        for record in state.fleet.sweep(now):
            silence = now - record.last_heard
            log.warning(
                "RaaS %r has been silent for %.0f s; its tasks return", record.name, silence
            )
            state.raas_gone(record.name, f"RaaS {record.name!r} was silent for {silence:.0f} s")
        for table in (state.train, state.eval):
            for task, reason in table.overdue(now):
                state.overdue(table, task, reason)

    def _silent_trainers(self) -> None:
        state, now = self._state, self._state.clock()
        silent = [
            policy
            for policy, trainer in state.trainers.items()
            if trainer.registered and not trainer.alive(now, state.config.run.deadline_s)
        ]
        for policy in silent:
            if evicted := state.streams[policy].evict_beyond_limit():
                state.records.tell(Evicted(policy=policy, arrivals=evicted))
        if not self._left_out.issuperset(silent):
            state.signals.work()  # from now on it holds nobody up
        self._left_out = set(silent)

    def _hopeless_waits(self) -> None:
        """A counterpart that never comes, or is gone for good, becomes an error that names it."""
        state, run, now = self._state, self._state.config.run, self._state.clock()
        if state.progress.state is RunState.STARTING:
            if now - state.progress.since >= run.start_deadline_s:
                missing = [p for p, version in state.versions.newest.items() if version < 0]
                state.fail(
                    f"after {run.start_deadline_s:.0f} s no version was announced by the trainer of "
                    + ", ".join(repr(policy) for policy in missing)
                )
            return
        if state.progress.ending:
            return
        known = [r for r in state.fleet.all() if r.last_heard >= state.started_at]
        heard = max([record.last_heard for record in known], default=state.started_at)
        limit = run.patience_s if known else run.start_deadline_s
        if not state.fleet.present() and now - heard >= limit:
            names = ", ".join(f"{record.name!r} ({record.health})" for record in known)
            state.fail(f"no RaaS was heard of for {now - heard:.0f} s; known: {names or 'none'}")
            return
        for policy, trainer in state.trainers.items():
            stream = state.streams[policy]
            limit = run.patience_s
            if stream.trainer_is_new:
                limit = max(limit, run.start_deadline_s)
            if trainer.owes_a_sign and not stream.done and now - trainer.last_heard >= limit:
                state.fail(
                    f"the trainer of {policy!r} was silent for {now - trainer.last_heard:.0f} s; if it "
                    "needs that long for a step, raise [run] deadline_s, of which it gets five"
                )
                return
        busy = (
            state.train.running
            or state.eval.running
            or any(stream.outstanding for stream in state.streams.values())
        )
        idle = now - state.last_progress
        limit = LONGEST_FULL_S if state.held_back else max(run.patience_s, run.start_deadline_s)
        if not busy and idle >= limit:
            serving = "; ".join(f"{r.name!r} serves {r.serving}" for r in state.fleet.present())
            state.fail(
                f"nothing has happened for {idle:.0f} s: no task could be leased. {state.held_back} "
                f"Newest versions: {dict(state.versions.newest)}; {serving}"
            )
