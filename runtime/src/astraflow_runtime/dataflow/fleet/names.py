"""Who may register under the name of a RaaS.

Two RaaS of one name would both be given tasks, and their tokens be counted as those of one. A process that was killed
says nothing, and its successor may be there at once; a launcher has seen its end, so a successor that it starts (the
same ``origin``) has the name at once. Of others only time tells: a RaaS that lives is heard from again soon.
"""

from __future__ import annotations

from astraflow_core.errors import Refused
from astraflow_runtime.dataflow.fleet.raas import RaasRecord
from astraflow_runtime.dataflow.state import FlowState
from astraflow_wire.messages import RegisterRaas


def name_holder(state: FlowState, message: RegisterRaas, came: float) -> RaasRecord | None:
    """The RaaS that has the name of ``message``, which came at ``came`` of the run's clock, and may be alive; ``None``
    if the name is free, or the sender's own. 409 if that one was heard from since, or the sender was started before it."""
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
        raise Refused(409, _taken(state, holder))
    return holder


def _who(holder: RaasRecord) -> str:
    return f"pid {holder.pid} on {holder.host}"


def _taken(state: FlowState, holder: RaasRecord) -> str:
    now = state.clock()
    return (
        f"the name {holder.name!r} is taken: {_who(holder)} registered under it {now - holder.registered_at:.1f} s "
        f"ago and was heard from {now - holder.last_heard:.1f} s ago. Start this RaaS under another name (--name), "
        "or stop the other one: the name becomes free when it leaves or has been silent for "
        f"{state.fleet.suspect_s:g} s"
    )
