"""Messages between RaaS or trainers and the dataflow; msgpack bodies of ``POST /v1/...``.

Every call is made by the RaaS or the trainer. Announcements, pins, revocations and the wish to stop come
back as :class:`News` in the replies to calls that a RaaS makes anyway.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from astraflow_core.errors import WireError

T = TypeVar("T")


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all messages: immutable, unknown fields refused."""


class SamplingMessage(Message, frozen=True):
    """Sampling of a task; fields as in :class:`astraflow_core.types.Sampling`, stop strings as text."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop: list[str] = []


class Probe(Message, frozen=True):
    """What a trainer says of the tokens of a few rows under a version: ``lengths`` of the rows; ``tokens``
    int32, ``sampled`` uint8 (1: compare it) and ``logprobs`` float32 at temperature 1 are little-endian bytes,
    concatenated over the rows."""

    lengths: list[int]
    tokens: bytes
    sampled: bytes
    logprobs: bytes


class AnnouncementMessage(Message, frozen=True):
    """A published version; fields as in :class:`astraflow_core.types.Announcement`. With a ``probe`` a RaaS
    that serves the version compares its engine's log-probs, and reports the gap among its metrics.

    400: the run has no such policy; the reason lists those that it has.
    409: the number is not above the newest; numbers only grow.
    409: the number was announced with another digest.
    """

    policy: str
    version: int
    transport: str
    endpoints: list[str]
    digest: str
    size: int
    probe: Probe | None = None


class RevokedLease(Message, frozen=True):
    """A task that the RaaS must abort: its push would be answered 409."""

    task: str
    reason: str


class News(Message, frozen=True):
    """What a RaaS should know now. ``announcements``: the newest version of each policy that is newer
    than what the RaaS said it has seen. ``pins``: policy → version that this RaaS must serve until the
    pin is gone (evaluation). ``stop``: leave."""

    announcements: list[AnnouncementMessage] = []
    pins: dict[str, int] = {}
    revoked: list[RevokedLease] = []
    stop: bool = False


class Task(Message, frozen=True):
    """One group to roll out. ``pinned`` is not empty for evaluation: policy → exact version. After
    ``group_deadline_s`` the episodes that are done are pushed and the others aborted."""

    id: str
    prompt_id: str
    data: dict[str, Any]
    group_size: int
    sampling: SamplingMessage
    lease_s: float
    deadline_s: float
    pinned: dict[str, int] = {}
    eval_set: str = ""
    group_deadline_s: float | None = None


class RegisterRaas(Message, frozen=True):
    """``POST /v1/raas/register``; ``capacity`` in episodes at once.

    400: a capacity below one episode.
    400: the run has no such policy; the reason lists those that it has.
    """

    raas: str
    pid: int
    host: str
    policies: list[str]
    capacity: int


class RaasRegistered(Message, frozen=True):
    """Reply: how often to renew at least (``renew_s``), and the news."""

    run: str
    renew_s: float
    news: News


class LeaseTasks(Message, frozen=True):
    """``POST /v1/tasks/lease``: up to ``free`` episodes' worth of tasks. Waits up to ``wait_s``, less if
    there are tasks or news. ``serving``: policy → version served now; ``seen``: policy → newest version
    heard of.

    404: this RaaS is not registered, or was given up: it must register (again).
    """

    raas: str
    free: int
    wait_s: float
    serving: dict[str, int]
    seen: dict[str, int]


class TasksLeased(Message, frozen=True):
    """Reply to :class:`LeaseTasks`."""

    tasks: list[Task]
    news: News


class RenewLeases(Message, frozen=True):
    """``POST /v1/tasks/renew``: the heartbeat of a RaaS with all tasks that it holds. ``metrics``: gauges
    and counters of the RaaS (``tokens_generated``, ``prompt_tokens``, ``running``, ``decode_s``, per policy
    ``POLICY/pull_s``, ``POLICY/pause_s``, ``POLICY/load_s``, ``POLICY/resume_s``, ``POLICY/swaps``, of the way to
    the publisher ``POLICY/link_mb_s`` and ``POLICY/link_s``, its round trip …, and of the last :class:`Probe`
    ``POLICY/probe_version``, ``POLICY/probe_mean``, ``POLICY/probe_largest``).
    ``waits``: what it waits for.

    404: this RaaS is not registered, or was given up: it must register (again).
    """

    raas: str
    tasks: list[str]
    serving: dict[str, int]
    seen: dict[str, int]
    metrics: dict[str, float] = {}
    waits: list[Wait] = []


class Wait(Message, frozen=True):
    """One wait: ``who`` waits ``for_whom`` because of ``what``, ``since_s`` seconds, at most
    ``until_s`` more."""

    who: str
    for_whom: str
    what: str
    since_s: float
    until_s: float


class LeasesRenewed(Message, frozen=True):
    """Reply to :class:`RenewLeases`."""

    news: News


class FailTask(Message, frozen=True):
    """``POST /v1/tasks/fail``: the RaaS could not roll the task out; ``error`` for a person.
    ``fatal``: no other attempt can do better (prompt over the context …)."""

    raas: str
    task: str
    error: str
    fatal: bool = False


class GroupPushed(Message, frozen=True):
    """Reply to ``POST /v1/groups``: ``status`` is ``accepted`` (by at least one policy), ``rejected``,
    ``partial`` (what the group deadline cut off is a task of its own now) or ``duplicate`` (this task was
    pushed before; nothing changed). A late push is answered 409."""

    status: str
    reasons: dict[str, str] = {}


class LeaveRaas(Message, frozen=True):
    """``POST /v1/raas/leave``: its leases return to the queue at once."""

    raas: str
    reason: str


class AddRaas(Message, frozen=True):
    """``POST /v1/raas/add``: the launcher of the run shall start ``count`` more RaaS. ``author``: who asks. A
    message with the same ``id`` is done once.

    400: the count is below one.
    409: the run ends.
    """

    id: str
    count: int
    author: str


class PoolChanged(Message, frozen=True):
    """Since the run began ``added`` RaaS were asked for and ``drained`` were asked to leave; ``size``: those
    that are there now and are to stay."""

    added: int
    drained: int
    size: int


class DrainRaas(Message, frozen=True):
    """``POST /v1/raas/drain``: a RaaS gets no new tasks, finishes what it has, and leaves. ``author``: who
    asks. Asked again, it changes nothing.

    404: no RaaS of that name is there.
    409: it is the last one; add another first.
    """

    raas: str
    author: str


class RegisterTrainer(Message, frozen=True):
    """``POST /v1/trainers/register``: the trainer of a policy arrives, or comes back. ``updates``: those after
    which it has a state to go on from, its checkpoints or (0) the start.

    400: the run has no such policy; the reason lists those that it has.
    409: none of ``updates`` fits: they are more than were made, or later batches are not kept any more.
    """

    policy: str
    pid: int
    host: str
    updates: tuple[int, ...] = (0,)


class TrainerRegistered(Message, frozen=True):
    """Reply: ``highest_version`` announced so far (-1: none), and the ``updates`` to go on from; those made
    since are made again, from the same batches in the same order."""

    run: str
    highest_version: int
    updates: int


class VersionAnnounced(Message, frozen=True):
    """Reply to ``POST /v1/versions`` (body: :class:`AnnouncementMessage`): the versions that the publisher
    must retain beside the newest."""

    retain: list[int]


class NextBatch(Message, frozen=True):
    """``POST /v1/batches/next``: the batch that updates ``version``. Waits up to ``wait_s``; the reply is a
    frame (``wire.batches``).

    400: the run has no such policy; the reason lists those that it has.
    409: the trainer is not registered.
    409: ``version`` is not the newest announced.
    409: the batch before, for another version, is not acknowledged.
    """

    policy: str
    version: int
    wait_s: float


class AcknowledgeBatch(Message, frozen=True):
    """``POST /v1/batches/ack``: the update made from ``batch`` is done, and published as ``version`` if
    that differs from the version updated. ``metrics`` of the step are logged and shown.

    400: the run has no such policy; the reason lists those that it has.
    409: the version is not announced.
    409: this batch is not the one being trained.
    """

    policy: str
    batch: str
    version: int
    metrics: dict[str, float]


class BatchAcknowledged(Message, frozen=True):
    """Reply: versions to retain; ``stop``: make no further update."""

    retain: list[int]
    stop: bool


class ReleaseBatches(Message, frozen=True):
    """``POST /v1/batches/release``: a checkpoint holds all updates up to ``updates``.

    400: the run has no such policy; the reason lists those that it has.
    409: more updates are released than were acknowledged.
    """

    policy: str
    updates: int


class TrainerFailed(Message, frozen=True):
    """``POST /v1/trainers/failed``: the trainer ends because of ``error`` (``batch`` if one is at fault; ``user``
    if it is a mistake that the user can mend).

    400: the run has no such policy; the reason lists those that it has.
    """

    policy: str
    error: str
    batch: str = ""
    user: bool = False


class StopRun(Message, frozen=True):
    """``POST /v1/stop``: end the run cleanly."""

    reason: str


class SwapPolicy(Message, frozen=True):
    """``POST /v1/data_policies/swap``: put another data policy in the place of ``name``, or with an empty
    ``table`` the one before. ``place``: ``"prompts"``, or the policy whose data it decides on; ``table``: as in
    the config, ``use`` and keys; ``author`` and ``at`` (seconds since 1970) are kept with it. A message with
    the same ``id`` is done once.

    400: there is no such place or name.
    400: the table is wrong, or does not go with the other policies of the list.
    400: the policy was not swapped, so that there is nothing to put back.
    """

    id: str
    place: str
    name: str
    author: str
    at: float
    table: dict[str, Any] = {}


class PolicySwapped(Message, frozen=True):
    """``number`` of the swap in this run, from 1, and the ``table`` that holds from now on."""

    number: int
    table: dict[str, Any]


class Done(Message, frozen=True):
    """Reply where there is nothing to say."""


def encode(message: Message) -> bytes:
    """A message as msgpack."""
    return msgspec.msgpack.encode(message)


def decode(body: bytes, expected: type[T]) -> T:
    """A received message; :class:`WireError` says what was expected and which field is wrong."""
    try:
        return msgspec.msgpack.decode(body, type=expected)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WireError(f"expected a msgpack {expected.__name__}: {error}") from error
