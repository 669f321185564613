"""The notices that a RaaS gets in the replies to its calls."""

from __future__ import annotations

from astraflow_runtime.dataflow.fleet.raas import RaasRecord
from astraflow_runtime.dataflow.state import FlowState
from astraflow_wire.messages import Notices


def notices(state: FlowState, record: RaasRecord) -> Notices:
    """The pending notices for a RaaS; they count as sent."""
    newest, pins = state.versions.newer_than(record.seen), state.evaluations.pins(record.name)
    listed = {(message.policy, message.version) for message in newest}
    for policy, version in pins.items():
        pinned = state.versions.get(policy, version)
        if (
            pinned is not None
            and record.serving.get(policy) != version
            and (policy, version) not in listed
        ):
            newest.append(pinned)
    record.acknowledged_versions = dict(state.versions.newest)
    record.sent_pins = dict(pins)
    revoked, record.revoked = list(record.revoked.values()), {}
    record.sent_discard, record.sent_offer = record.discard, sorted(state.recoveries)
    return Notices(
        announcements=newest,
        pins=dict(pins),
        revoked=revoked,
        stop=state.progress.ending or may_leave(state, record),
        discard=record.discard,
        offer=record.sent_offer,
    )


def may_leave(state: FlowState, record: RaasRecord) -> bool:
    """Whether a RaaS that is drained has nothing left to do."""
    held = state.train.held_by(record.name) or state.eval.held_by(record.name)
    return record.draining and not held and not state.evaluations.pins(record.name)


def has_notices(state: FlowState, record: RaasRecord) -> bool:
    """Whether there are notices for the RaaS that were not sent yet."""
    known = {
        policy: max(record.acknowledged_versions.get(policy, -1), record.seen.get(policy, -1))
        for policy in state.streams
    }
    return (
        state.progress.ending
        or may_leave(state, record)
        or bool(record.revoked)
        or record.discard != record.sent_discard
        or record.sent_offer != sorted(state.recoveries)
        or record.sent_pins != state.evaluations.pins(record.name)
        or bool(state.versions.newer_than(known))
    )
