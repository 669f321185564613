"""Incarnations: only the process that registered last under a name may call as that RaaS or
trainer. Calls of a dead process may arrive after its successor has registered, delayed in a proxy
or a socket. Each registration has a number, which every later call carries. Registrations are in
the journal, so that a restarted dataflow continues the count.
"""

from __future__ import annotations

from typing import Protocol

from astraflow_core.errors import Refused
from astraflow_runtime.dataflow.state import FlowState
from astraflow_wire.groups import GroupHeader
from astraflow_wire.http.drafts import AskDrafts
from astraflow_wire.http.recovery import OfferVersion
from astraflow_wire.messages import (
    AcknowledgeBatch,
    AnnouncementMessage,
    FailTask,
    LeaseTasks,
    LeaveRaas,
    NextBatch,
    ReleaseBatches,
    RenewLeases,
    TrainerFailed,
)

RaasCall = LeaseTasks | RenewLeases | FailTask | LeaveRaas | GroupHeader | OfferVersion | AskDrafts
TrainerCall = AnnouncementMessage | NextBatch | AcknowledgeBatch | ReleaseBatches | TrainerFailed


class _Holder(Protocol):
    """Who registered last under a name, as number ``incarnation`` at ``registered_at`` of the run's clock."""

    pid: int
    host: str
    incarnation: int
    registered_at: float


def check_incarnation(state: FlowState, message: object) -> None:
    """Reject a call that is not from the process that registered last under this name: 409 if
    another has registered since, 400 if the call has no number, 404 or (trainer) 409 if the number
    was never assigned. A group from a RaaS that never registered is left to the check of its lease.
    """
    if isinstance(message, RaasCall):
        record, who = state.fleet.get(message.raas), f"RaaS {message.raas!r}"
        if record is not None:
            _check(state, who, message.incarnation, record, 404)
        elif not isinstance(message, GroupHeader):
            raise Refused(404, f"{who} is not registered; it must register")
    elif isinstance(message, TrainerCall):
        state.stream(message.policy)
        who, trainer = f"the trainer of {message.policy!r}", state.trainers[message.policy]
        if not trainer.registered:
            if isinstance(message, TrainerFailed) and not message.incarnation:
                return  # it failed before it registered, and no other process can continue
            raise Refused(409, f"{who} is not registered")
        _check(state, who, message.incarnation, trainer, 409)


def _check(state: FlowState, who: str, given: int, holder: _Holder, unknown: int) -> None:
    if given == holder.incarnation:
        return
    if given < 1:
        raise Refused(
            400,
            f"`incarnation` is missing; send the number that {who} received in the reply to register",
        )
    if given > holder.incarnation:
        raise Refused(unknown, f"{who} is not registered as incarnation {given}; it must register")
    ago = state.clock() - holder.registered_at
    raise Refused(
        409,
        f"incarnation {given} of {who} is superseded by the process that registered {ago:.1f} s ago: "
        f"incarnation {holder.incarnation}, pid {holder.pid} on {holder.host}",
    )
