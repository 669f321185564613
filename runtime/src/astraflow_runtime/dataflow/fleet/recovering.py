"""Trainers that have lost their state ask for it, and RaaS answer."""

from __future__ import annotations

import logging

from msgspec.structs import asdict

from astraflow_runtime.dataflow.fleet.recovery import VersionSearch
from astraflow_runtime.dataflow.state import FlowState
from astraflow_wire.http.recovery import OfferVersion, RecoverableVersions, RecoverVersion
from astraflow_wire.messages import RegisterTrainer
from astraflow_wire.policy_status import RecoveryStatus

log = logging.getLogger("astraflow.dataflow")
KEPT = 16
"""The newest recoveries of a policy that are shown."""


class Recovering:
    """The calls of both sides."""

    def __init__(self, state: FlowState) -> None:
        self._state = state

    def begin(self, message: RecoverVersion) -> VersionSearch:
        """Ask every RaaS for what it has."""
        state = self._state
        state.stream(message.policy)
        now = state.clock()
        recovery = VersionSearch(message.policy, now, now + message.wait_s)
        state.recoveries[message.policy] = recovery
        state.trainers[message.policy].heard(now)
        state.signals.every_raas()
        log.info(
            "the trainer of %r has no state to continue from; every RaaS is asked for its newest version",
            message.policy,
        )
        return recovery

    def silent(self, recovery: VersionSearch) -> list[str]:
        """The RaaS whose answers are missing."""
        present = self._state.fleet.present()
        return recovery.missing([raas.name for raas in present if raas.health == "alive"])

    def found(self, recovery: VersionSearch) -> RecoverableVersions:
        """What the trainer can try."""
        state, stream = self._state, self._state.streams[recovery.policy]
        most = stream.updates + (stream.outstanding is not None)
        return recovery.found(state.versions, most, self.silent(recovery))

    def offered(self, message: OfferVersion) -> None:
        """The answer of a RaaS; one that comes too late changes nothing."""
        recovery = self._state.recoveries.get(message.policy)
        if recovery is not None:
            recovery.offers[message.raas] = message


def note_recovery(
    state: FlowState, message: RegisterTrainer, *, made: int, before: int, updates: int
) -> None:
    """Record that a trainer continues with a published version of ``made`` updates: ``before`` were
    made in all, and it continues after ``updates``."""
    noted = RecoveryStatus(
        version=message.recovered,
        of_update=made,
        again=before - updates,
        lost=max(updates - made, 0),
        optimizer=max((saved for saved in message.updates if saved <= updates), default=0),
    )
    trainer = state.trainers[message.policy]
    trainer.recoveries = [*trainer.recoveries, noted][-KEPT:]
    state.records.log({"recovery": {"policy": message.policy, **asdict(noted)}})
    if not state.replaying:
        log.warning("the trainer of %r had lost its state: %s", message.policy, noted.text)
