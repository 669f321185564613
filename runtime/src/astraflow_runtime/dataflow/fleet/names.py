"""Who may register under the name of a RaaS.

Two RaaS of one name would both get tasks, and their tokens would be counted as one. A killed
process does not deregister, and its successor may start at once. A launcher has seen it exit, so a
successor that it starts (the same ``origin``) gets the name at once. For any other process the
dataflow waits: a live RaaS soon sends its next heartbeat.
"""

from __future__ import annotations

from astraflow_core.errors import Refused
from astraflow_runtime.dataflow.fleet.raas import RaasRecord
from astraflow_runtime.dataflow.state import FlowState
from astraflow_wire.messages import RegisterRaas


def name_holder(state: FlowState, message: RegisterRaas, came: float) -> RaasRecord | None:
    """The RaaS that has the name in ``message`` (received at ``came`` of the run's clock) and may
    be alive; ``None`` if the name is free or the sender's own. 409 if that RaaS has sent a
    heartbeat since, or the sender was started before it.
    """
    holder = state.fleet.get(message.raas)
    if holder is None or holder.health != "alive" or holder.same_process(message):
        return None
    if message.origin and message.origin == holder.origin:
        if message.start < holder.start:
            raise Refused(
                409,
                f"start {message.start} of RaaS {message.raas!r} was declared dead by its launcher, which has started {_who(holder)} "
                "in its place; this process must exit",
            )
        return None
    if holder.last_heard > came:
        raise Refused(409, _name_taken(state, holder))
    return holder


def _who(holder: RaasRecord) -> str:
    return f"pid {holder.pid} on {holder.host}"


def _name_taken(state: FlowState, holder: RaasRecord) -> str:
    now = state.clock()
    return (
        f"the name {holder.name!r} is taken: {_who(holder)} registered under it {now - holder.registered_at:.1f} s "
        f"ago and was heard from {now - holder.last_heard:.1f} s ago. Start this RaaS under another name (--name), "
        "or stop the other one: the name becomes free when it leaves or has been silent for "
        f"{state.fleet.suspect_s:g} s"
    )
