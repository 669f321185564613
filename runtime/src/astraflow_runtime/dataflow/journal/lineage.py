"""The history of a prompt or a group, from a journal: plain values, with times in seconds of the
run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from astraflow_runtime.dataflow.journal.entries import Judged
from astraflow_wire.groups import GroupHeader

State = Literal["queued", "leased", "accepted", "rejected", "failed", "set_aside", "refilled"]
RowState = Literal["buffered", "being_trained", "trained", "stale", "evicted"]


@dataclass(slots=True)
class ShadowRejection:
    """A ``shadow`` would have rejected it, for a ``reason``."""

    shadow: str
    reason: str


@dataclass(slots=True)
class Offered:
    """The prompt was drawn: it was ``admitted`` as the group ``group`` (``forced``: without asking
    the data policies), or rejected ``by`` a data policy for a ``reason``.
    """

    at_s: float
    admitted: bool
    group: str = ""
    forced: bool = False
    by: str = ""
    reason: str = ""
    shadow_rejections: list[ShadowRejection] = field(default_factory=list)


@dataclass(slots=True)
class Attempt:
    """A lease: which RaaS had the task, and why the lease ended; active if ``until_s`` is ``None``. ``second``: in addition to another
    one."""

    raas: str
    since_s: float
    until_s: float | None = None
    ended: str = ""
    second: bool = False


@dataclass(slots=True)
class Use:
    """A batch with the row: it updated the version ``updates``; ``trained_s`` and ``published`` are
    the time of the update and the version that it made, if it is done.
    """

    batch: str
    served_s: float
    updates: int
    trained_s: float | None = None
    published: int | None = None


@dataclass(slots=True)
class RowLineage:
    """Sequence ``index`` of the group, row ``arrival`` of its policy's buffer; ``lent``: batches of
    other policies that shared it.
    """

    arrival: int
    index: int
    reward: float
    length: int
    min_version: int
    state: RowState = "buffered"
    batches: list[Use] = field(default_factory=list)
    lent: list[Use] = field(default_factory=list)


@dataclass(slots=True)
class PolicyOutcome:
    """The verdict on the group for a policy, whose newest version was ``newest`` then. ``by`` is
    empty if the dataflow itself rejected the group. ``untrained`` and ``stale``: sequences that
    became no row.
    """

    policy: str
    accepted: bool
    by: str
    reason: str
    newest: int
    rewards: list[float]
    min_versions: list[int]
    rows: list[RowLineage]
    untrained: int = 0
    stale: int = 0
    shadow_rejections: list[ShadowRejection] = field(default_factory=list)


@dataclass(slots=True)
class GroupLineage:
    """A group from its admission on, or the rest of the group that it ``completes``. ``eval_set``
    is set for a group of an evaluation. ``late`` episodes were cut off by the group deadline.
    """

    group: str
    prompt: str = ""
    eval_set: str = ""
    state: State = "queued"
    offered: Offered | None = None
    attempts: list[Attempt] = field(default_factory=list)
    pushed_s: float | None = None
    trajectories: int = 0
    rejected_by_workflow: int = 0
    late: int = 0
    completes: str = ""
    completed_by: str = ""
    shares: list[PolicyOutcome] = field(default_factory=list)


def share_of(judged: Judged, header: GroupHeader, trained: list[int], newest: int) -> PolicyOutcome:
    """The share of a policy when its group was received."""
    own = [(i, s) for i, s in enumerate(header.sequences) if s.policy == judged.policy]
    accepted = not judged.reason
    untrained = sum(trained[i] == 0 for i, _ in own)
    rows = [
        RowLineage(
            judged.first + position,
            index,
            sequence.reward,
            sequence.length,
            sequence.min_version,
            "evicted" if judged.only_lent else "buffered",
        )
        for position, index in enumerate(judged.indexes)
        for sequence in [header.sequences[index]]
    ]
    return PolicyOutcome(
        policy=judged.policy,
        accepted=accepted,
        by=judged.by,
        reason=judged.reason,
        newest=newest,
        rewards=[sequence.reward for _, sequence in own],
        min_versions=[sequence.min_version for _, sequence in own],
        rows=rows,
        untrained=untrained,
        stale=len(own) - untrained - len(rows) if accepted else 0,
        shadow_rejections=[
            ShadowRejection(shadow, reason) for shadow, reason in judged.shadow_rejections
        ],
    )
