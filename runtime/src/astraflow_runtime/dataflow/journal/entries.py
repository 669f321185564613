"""What a journal tells: every event that changed the lasting state of the dataflow, in order.

An event is mostly the message that caused it; what a clock or a silence decided has an entry of its own.
Whatever follows from an entry by the rules of the dataflow (verdicts, evaluations due, tasks that return
because their RaaS left) is not told: whoever reads the journal applies the same rules.
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
"""What the dataflow added up itself."""


class Told(msgspec.Struct, Generic[Message], frozen=True, kw_only=True):
    """What a RaaS, a trainer or a person said: ``message``, as it came."""

    message: Message


class BodyLocation(msgspec.Struct, frozen=True, array_like=True):
    """Where a body lies: ``size`` bytes from ``offset`` in the file of bodies number ``segment``, with
    their xxh3-64 ``digest``."""

    segment: Count
    offset: Count
    size: Count
    digest: int


class PromptsRejected(msgspec.Struct, frozen=True, array_like=True):
    """``prompts`` that the data policy ``by`` refused for one reason, or would have if it is a ``shadow``."""

    by: str
    reason: str
    prompts: list[str]
    shadow: bool = False


class PromptsConsumed(msgspec.Struct, frozen=True, tag="walked", kw_only=True):
    """Prompts were taken from the cursor, which is at ``cursor`` now; the last of them, ``prompt``, became
    ``task`` unless that is empty, ``forced`` against the data policies. ``turned``: who refused which."""

    cursor: Count
    task: str = ""
    prompt: str = ""
    forced: bool = False
    turned: list[PromptsRejected] = []


class Leased(msgspec.Struct, frozen=True, tag="leased", kw_only=True):
    """A RaaS that runs ``capacity`` episodes at once took a task."""

    task: str
    raas: str
    capacity: Places


class Overdue(msgspec.Struct, frozen=True, tag="overdue", kw_only=True):
    """A lease reached its end without a result."""

    task: str
    reason: str


class AttemptFailed(Told[FailTask], frozen=True, tag="failed", kw_only=True):
    """A RaaS could not roll out a task that it held."""


class Judged(msgspec.Struct, frozen=True, array_like=True):
    """What a group was to ``policy``: refused ``by`` a data policy (empty: the dataflow) for a reason, or kept
    if that is empty. The sequences ``indexes`` became rows, numbered from ``first`` in the order of arrival.
    ``shadow_rejections``: (shadow, its reason). ``only_lent``: the policy had made all its updates, the rows are there for
    those that borrow them."""

    policy: str
    by: str
    reason: str
    first: Integer
    indexes: list[Count]
    shadow_rejections: list[tuple[str, str]] = []
    only_lent: bool = False


class Pushed(msgspec.Struct, frozen=True, tag="pushed", kw_only=True):
    """A group came in. ``header`` is its own, without turns; ``trained``: trained tokens of each sequence;
    ``body``: where it lies, if a policy accepted it; ``judged``: for each policy that has a share of it. If
    ``refill`` is set the group is not whole: nobody has judged it, and that task shall bring the rest."""

    header: GroupHeader
    trained: list[Count]
    accepted: bool
    body: BodyLocation | None = None
    judged: list[Judged] = []
    refill: str = ""


class BatchRequested(Told[NextBatch], frozen=True, tag="asked", kw_only=True):
    """A trainer asked for a batch and got ``batch``, made of the rows with these ``arrivals``; or none,
    and rows were dropped or a data policy was asked to draw. ``dropped``: arrivals of rows that had become
    too stale. ``borrowed``: arrivals, among the rows of ``source``, of those that the batch borrows."""

    batch: str = ""
    arrivals: list[Count] = []
    dropped: list[Count] = []
    source: str = ""
    borrowed: list[Count] = []


class Acknowledged(Told[AcknowledgeBatch], frozen=True, tag="acknowledged", kw_only=True):
    """An update is done. ``tokens_generated`` and, for each RaaS, ``generated``: the counters by then;
    ``first_asked`` (seconds of the run) and ``waited_s``: what its trainer waited so far; ``idle``: RaaS →
    seconds that places of it stood empty since it registered."""

    tokens_generated: Finite
    generated: dict[str, Number]
    first_asked: Finite | None
    waited_s: Finite
    idle: dict[str, Finite] = {}


class Released(Told[ReleaseBatches], frozen=True, tag="released", kw_only=True):
    """A checkpoint of a trainer is there."""


class TrainerRegistration(Told[RegisterTrainer], frozen=True, tag="trainer_came", kw_only=True):
    """A trainer registered."""


class RaasRegistration(Told[RegisterRaas], frozen=True, tag="raas_came", kw_only=True):
    """A RaaS registered."""


class RaasLeft(Told[LeaveRaas], frozen=True, tag="raas_left", kw_only=True):
    """A RaaS said goodbye."""


class RaasGone(msgspec.Struct, frozen=True, tag="raas_gone", kw_only=True):
    """A RaaS was silent for too long."""

    raas: str
    reason: str


class RaasAsked(Told[AddRaas], frozen=True, tag="raas_asked", kw_only=True):
    """Somebody asked for more RaaS."""


class RaasDrained(Told[DrainRaas], frozen=True, tag="raas_drained", kw_only=True):
    """Somebody asked a RaaS to finish what it has and leave."""


class Announced(Told[AnnouncementMessage], frozen=True, tag="announced", kw_only=True):
    """A version is out."""


class Evicted(msgspec.Struct, frozen=True, tag="evicted", kw_only=True):
    """The oldest rows over the limit, ``arrivals``, were dropped: the trainer of their policy is silent."""

    policy: str
    arrivals: list[Count] = []


class EvaluationGivenUp(msgspec.Struct, frozen=True, tag="evaluation_given_up", kw_only=True):
    """The weights that the running evaluation needs are gone."""

    reason: str


class Swapped(Told[SwapPolicy], frozen=True, tag="swapped", kw_only=True):
    """A data policy was replaced, when these were the newest ``versions``."""

    versions: Versions


class StopRequested(msgspec.Struct, frozen=True, tag="stop_requested", kw_only=True):
    """Somebody asked for the end of the run: trainers save, and everyone leaves."""

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
    | RaasAsked
    | RaasDrained
    | Announced
    | Evicted
    | EvaluationGivenUp
    | StopRequested
    | Resumed
    | Swapped
)
