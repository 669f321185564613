"""The entries of a journal: every event that changed the persistent state of the dataflow, in
order. Most are the message that caused the event; what a timeout decided has its own entry.
Whatever follows from an entry by the rules of the dataflow (verdicts, evaluations to run, tasks
that return because their RaaS left) is not recorded: a reader of the journal applies the same
rules.
"""

from __future__ import annotations

import sys
from typing import Annotated, Generic, TypeVar

import msgspec

from astraflow_wire.groups import GroupHeader
from astraflow_wire.limits import Count, Integer, Number, Places, Versions
from astraflow_wire.messages import (
    AcknowledgeBatch,
    AddRaas,
    AnnouncementMessage,
    DrainRaas,
    FailTask,
    LeaveRaas,
    NextBatch,
    RegisterRaas,
    RegisterTrainer,
    ReleaseBatches,
    SwapPolicy,
)

Message = TypeVar("Message")
Finite = Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
"""Figures that the dataflow computed itself."""


class MessageEntry(msgspec.Struct, Generic[Message], frozen=True, kw_only=True):
    """The ``message`` of a RaaS, a trainer or an operator, as received."""

    message: Message


class BodyLocation(msgspec.Struct, frozen=True, array_like=True):
    """Location of a body: ``size`` bytes from ``offset`` in the file of bodies number ``segment``,
    with their xxh3-64 ``digest``."""

    segment: Count
    offset: Count
    size: Count
    digest: int


class PromptsRejected(msgspec.Struct, frozen=True, array_like=True):
    """``prompts`` that the data policy ``by`` rejected for one reason, or would have if it is a
    ``shadow``.
    """

    by: str
    reason: str
    prompts: list[str]
    shadow: bool = False


class PromptsConsumed(msgspec.Struct, frozen=True, tag="walked", kw_only=True):
    """Prompts were taken from the cursor, which is at ``cursor`` now; the last of them, ``prompt``,
    became ``task`` unless that is empty, ``forced`` against the data policies. ``turned``: which
    policy rejected which prompts.
    """

    cursor: Count
    task: str = ""
    prompt: str = ""
    forced: bool = False
    turned: list[PromptsRejected] = []


class Leased(msgspec.Struct, frozen=True, tag="leased", kw_only=True):
    """A RaaS that runs ``capacity`` episodes at once leased a task; ``second``: in addition to the RaaS that has it."""

    task: str
    raas: str
    capacity: Places
    second: bool = False


class Overdue(msgspec.Struct, frozen=True, tag="overdue", kw_only=True):
    """The lease of a task by ``raas`` expired without a result."""

    task: str
    reason: str
    raas: str = ""


class AttemptFailed(MessageEntry[FailTask], frozen=True, tag="failed", kw_only=True):
    """A RaaS failed a task that it had leased."""


class Judged(msgspec.Struct, frozen=True, array_like=True):
    """The verdict on a group for ``policy``: rejected ``by`` a data policy (empty: the dataflow)
    for a reason, or kept if the reason is empty. The sequences ``indexes`` became rows, numbered
    from ``first`` in the order of arrival. ``shadow_rejections``: (shadow, its reason).
    ``only_lent``: the policy had made all its updates; the rows are only for policies that share
    them."""

    policy: str
    by: str
    reason: str
    first: Integer
    indexes: list[Count]
    shadow_rejections: list[tuple[str, str]] = []
    only_lent: bool = False


class Pushed(msgspec.Struct, frozen=True, tag="pushed", kw_only=True):
    """A group was received. ``header`` is its own, without turns; ``trained``: trained tokens of
    each sequence; ``body``: its location, if a policy accepted it; ``judged``: for each policy that
    has a share of it. If ``refill`` is set the group is incomplete and not judged yet: that task is
    to produce the rest."""

    header: GroupHeader
    trained: list[Count]
    accepted: bool
    body: BodyLocation | None = None
    judged: list[Judged] = []
    refill: str = ""


class BatchRequested(MessageEntry[NextBatch], frozen=True, tag="asked", kw_only=True):
    """A trainer requested a batch and got ``batch``, the rows with these ``arrivals``; or none,
    while rows were dropped or a data policy was asked to draw. ``dropped``: arrivals of rows that
    had become too stale. ``borrowed``: arrivals, among the rows of ``source``, of the rows that it
    shares."""

    batch: str = ""
    arrivals: list[Count] = []
    dropped: list[Count] = []
    source: str = ""
    borrowed: list[Count] = []


class Acknowledged(MessageEntry[AcknowledgeBatch], frozen=True, tag="acknowledged", kw_only=True):
    """An update is done. ``tokens_generated`` and, for each RaaS, ``generated``: the counters at
    that time; ``first_asked`` (seconds of the run) and ``waited_s``: the waits of its trainer so
    far; ``idle``: RaaS → idle slot-seconds since it registered.
    """

    tokens_generated: Finite
    generated: dict[str, Number]
    first_asked: Finite | None
    waited_s: Finite
    idle: dict[str, Finite] = {}


class Released(MessageEntry[ReleaseBatches], frozen=True, tag="released", kw_only=True):
    """A checkpoint of a trainer is complete."""


class TrainerRegistration(
    MessageEntry[RegisterTrainer], frozen=True, tag="trainer_came", kw_only=True
):
    """A trainer registered."""


class RaasRegistration(MessageEntry[RegisterRaas], frozen=True, tag="raas_came", kw_only=True):
    """A RaaS registered."""


class RaasLeft(MessageEntry[LeaveRaas], frozen=True, tag="raas_left", kw_only=True):
    """A RaaS left."""


class RaasGone(msgspec.Struct, frozen=True, tag="raas_gone", kw_only=True):
    """A RaaS was silent for too long."""

    raas: str
    reason: str


class LeasesRevoked(msgspec.Struct, frozen=True, tag="leases_revoked", kw_only=True):
    """A RaaS lost its leases, for a reason that counts against no task."""

    raas: str
    reason: str


class RaasAsked(MessageEntry[AddRaas], frozen=True, tag="raas_asked", kw_only=True):
    """More RaaS were requested."""


class RaasDrained(MessageEntry[DrainRaas], frozen=True, tag="raas_drained", kw_only=True):
    """A RaaS was asked to finish its tasks and leave."""


class Announced(MessageEntry[AnnouncementMessage], frozen=True, tag="announced", kw_only=True):
    """A version was announced."""


class Evicted(msgspec.Struct, frozen=True, tag="evicted", kw_only=True):
    """The oldest rows beyond the limit, ``arrivals``, were evicted: the trainer of their policy is
    silent.
    """

    policy: str
    arrivals: list[Count] = []


class EvaluationGivenUp(msgspec.Struct, frozen=True, tag="evaluation_given_up", kw_only=True):
    """The weights of the running evaluation are no longer available."""

    reason: str


class Swapped(MessageEntry[SwapPolicy], frozen=True, tag="swapped", kw_only=True):
    """A data policy was replaced, when these were the newest ``versions``."""

    versions: Versions


class StopRequested(msgspec.Struct, frozen=True, tag="stop_requested", kw_only=True):
    """The run was asked to stop: trainers save a checkpoint, and every process leaves."""

    reason: str


class Resumed(msgspec.Struct, frozen=True, tag="resumed", kw_only=True):
    """The whole run was started again after it had ended: no earlier participant survives."""


Entry = (
    PromptsConsumed
    | Leased
    | Overdue
    | AttemptFailed
    | Pushed
    | BatchRequested
    | Acknowledged
    | Released
    | TrainerRegistration
    | RaasRegistration
    | RaasLeft
    | RaasGone
    | LeasesRevoked
    | RaasAsked
    | RaasDrained
    | Announced
    | Evicted
    | EvaluationGivenUp
    | StopRequested
    | Resumed
    | Swapped
)
